"""A Kubernetes cluster for the daemon: the pods of our schedulerName are its jobs.

`read` never writes. Orders become bindings; a pod that is bound counts as placed at once, and the watch confirms it.
"""

import logging
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

from adlro.backends.kubernetes.binding import Binder, BindOutcome
from adlro.backends.kubernetes.client import Api
from adlro.backends.kubernetes.credentials import ClusterServer, door_of
from adlro.backends.kubernetes.evicting import Evicting, why_not_stopped
from adlro.backends.kubernetes.nodes import Products
from adlro.backends.kubernetes.options import KubernetesOptions, PodFamilyTable
from adlro.backends.kubernetes.podjobs import PodNaming, PodRule
from adlro.backends.kubernetes.pods import Pod
from adlro.backends.kubernetes.pools import PLAIN_NETWORK, Dividing, Joined
from adlro.backends.kubernetes.reader import PodReader
from adlro.backends.kubernetes.seating import PodSeating, Seat
from adlro.backends.kubernetes.telling import Telling
from adlro.catalogue.clusters import load_cluster
from adlro.catalogue.families import REFERENCE, family_pattern, is_family
from adlro.catalogue.gpus import find_gpu, gpu_models
from adlro.core.errors import BackendError, CatalogueError, ConfigError
from adlro.core.ports import Answer, Order, Setback, Snapshot, Submission
from adlro.core.records import GpuModel
from adlro.ingest.telemetry.names import model_of, near_models
from adlro.process.logs import LOGGER

log = logging.getLogger(LOGGER)

FIRST_LIST_S: Final = 60.0
_PROBE_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class SeatedOrder:
    """An order whose pods have seats."""

    order: Order
    seats: Sequence[Seat]


@final
class Kubernetes:
    """A cluster whose pods name us as their scheduler."""

    def __init__(self, reader: PodReader, api: Api, options: KubernetesOptions) -> None:
        self._reader, self._api, self._options = reader, api, options
        self._binder = Binder(api, options.binders)
        self._telling = Telling(api, options.scheduler_name, socket.gethostname())
        self._evicting = Evicting(api, options.gang_timeout_s)
        self._has_acted = False  # since the reading on which the latest turn decides

    @property
    def name(self) -> str:
        """What it is, in a word."""
        return "kubernetes"

    @property
    def can_stop(self) -> bool:
        """Pods are evicted, and their owners create them again."""
        return True

    @property
    def places_gpus(self) -> bool:
        """False: the device plugin chooses the GPUs of a node."""
        return False

    @property
    def can_resize(self) -> bool:
        """False: a pod has the GPUs that it asks for."""
        return False

    @property
    def can_annotate(self) -> bool:
        """Users see the reason in `kubectl describe pod`."""
        return True

    @property
    def probe_s(self) -> float:
        """The watches know of each change at once, so asking costs nothing."""
        return _PROBE_S

    def read(self) -> Snapshot:
        """The cluster now."""
        self._reader.start(FIRST_LIST_S)
        return self._reader.snapshot(is_back=self._has_acted)

    def has_changed(self) -> bool:
        """Whether a pod or a node has changed since the latest reading on which a turn could decide.

        A turn decides before it acts: what came later is still new, though it was in the snapshot after the orders.
        """
        self._has_acted = False
        return self._reader.has_changed()

    # ---- orders --------------------------------------------------------------------------------------------------

    def act(self, orders: Sequence[Order]) -> list[Answer]:
        """Bind the pods of each order, all or none of a gang; evict those of jobs that are to stop."""
        self._has_acted = True
        answers = {order.job: self._stop(order) for order in orders if not order.is_start}
        planned: list[SeatedOrder] = []
        starts = [order for order in orders if order.is_start]
        with self._reader.lock:
            # The pools of the latest snapshot: an order means these.
            placing = PodSeating(self._reader, self._reader.dividing.latest or self._reader.pools()) if starts else None
            for order in starts:
                assert placing is not None
                found = self._plan(order, placing)
                if isinstance(found, Answer):
                    answers[order.job] = found
                else:
                    planned.append(found)
        gone = self._bind([each for each in planned if len(each.seats) == 1], answers)
        for each in planned:
            if len(each.seats) > 1:
                gone = self._bind_gang(each, answers) or gone
        self._keep_house()
        if gone:
            raise BackendError(gone)
        return [answers[order.job] for order in orders]

    def _plan(self, order: Order, placing: PodSeating) -> SeatedOrder | Answer:
        """Seats for the pods of an order, or the answer that there are none."""
        pods = self._pods_of(order.job)
        if not pods:
            is_there = self._reader.pods_of(order.job) != ()
            return Answer(order.job, is_there, "it is bound already" if is_there else "the pod is gone")
        wrong = next((said for each in pods if (said := each.unsupported or self._reader.volumes.problem(each))), "")
        found = wrong or placing.seats(order, pods)
        return Answer(order.job, False, found) if isinstance(found, str) else SeatedOrder(order, found)

    def _pods_of(self, job: str) -> list[Pod]:
        """The waiting pods of a job, as they are now."""
        name = self._options.scheduler_name
        return [pod for pod in self._reader.pods_of(job) if pod.waits and pod.scheduler == name]

    def _stop(self, order: Order) -> Answer:
        """Evict the pods of a job, so that it waits again once its owner has created them again."""
        with self._reader.lock:
            making = self._reader.making
            there = self._reader.pods_of(order.job)
            pods = [pod for pod in there if pod.holds_room]
            takers, most = self._pods_of(order.for_job), making.most_waiting
        if not pods:
            return Answer(order.job, bool(there), "it waits already" if there else "the pod is gone")
        is_begun = any(pod.uid in making.evicted for pod in pods)
        wrong = "" if is_begun else why_not_stopped(pods, self._options.scheduler_name, takers, most)
        if wrong or (wrong := self._evicting.stop(pods, making.evicted)):
            return Answer(order.job, False, wrong)
        if not is_begun:
            for taker in takers[:1] if len(takers) == 1 else ():
                self._evicting.nominate(taker, pods[0].node)
        return Answer(order.job, True, "its pods are being evicted", is_pending=True)

    def _bind(self, planned: Sequence[SeatedOrder], answers: dict[str, Answer]) -> str:
        """Bind pods that stand alone; what went wrong if the server is gone."""
        outcomes = self._binder.bind([each.seats[0] for each in planned]) if planned else []
        gone = ""
        for each, outcome in zip(planned, outcomes, strict=True):
            answers[each.order.job] = Answer(each.order.job, outcome.done, outcome.said)
            gone = self._settle(outcome) or gone
        return gone

    def _bind_gang(self, planned: SeatedOrder, answers: dict[str, Answer]) -> str:
        """Bind a gang: the server checks all bindings before the first is made."""
        id, seats = planned.order.job, planned.seats
        checked = self._binder.bind(seats, dry=True)
        if not all(each.done for each in checked):
            for seat in seats:
                self._reader.forget(seat.pod)
            refused = next(each for each in checked if not each.done)
            answers[id] = Answer(id, False, f"none of its pods was bound: {refused.seat.pod.name}: {refused.said}")
            return "" if refused.is_known else refused.said
        outcomes = self._binder.bind(seats)
        gone = ""
        for outcome in outcomes:
            gone = self._settle(outcome) or gone
        done = [each for each in outcomes if each.done]
        failed = next((each for each in outcomes if not each.done), None)
        said = f"{len(done)} of {len(seats)} pods were bound; {failed.seat.pod.name}: {failed.said}" if failed else ""
        answers[id] = Answer(id, not failed, said)
        return gone

    def _settle(self, outcome: BindOutcome) -> str:
        """Forget the assumption of a binding that failed. One whose outcome is not known counts until it expires."""
        if not outcome.done and outcome.is_known:
            self._reader.forget(outcome.seat.pod)
        return "" if outcome.is_known else outcome.said

    # ---- what users see ------------------------------------------------------------------------------------------

    def annotate(self, lines: Mapping[str, str]) -> None:
        """Show why pods wait: as their condition, and as events."""
        with self._reader.lock:
            told = [(pod, line) for job, line in lines.items() for pod in self._pods_of(job)]
        for pod, line in told:
            self._telling.tell(pod, line)
        self._keep_house()

    def give_back(self, reasons: Mapping[str, str]) -> list[Answer]:
        """Nobody else takes a pod that names us, so its users are told why it cannot be placed."""
        self.annotate({job: f"ADLRO cannot place it: {reason}" for job, reason in reasons.items()})
        said = "a pod cannot change its schedulerName; its condition says why it is not placed"
        return [Answer(job, False, said, is_final=True) for job in reasons]

    def _keep_house(self) -> None:
        """End gangs that stay bound in part, and tell reasons that have changed. Only a leader comes here."""
        with self._reader.lock:
            gangs = list(self._reader.gangs.values())
            refused = [
                (pod, f"ADLRO cannot place it: {job.reason}")
                for job in self._reader.latest_jobs
                if job.setback is Setback.UNPLACEABLE
                for pod in self._pods_of(job.id)
            ]
            waiting = {pod.uid: pod for pod in self._reader.waiting.values()}
        for pod, line in refused:
            if pod.shown != line:
                self._telling.tell(pod, line)
        self._telling.forget_all_but(waiting)
        for said in self._evicting.end_partial(gangs):
            log.warning(said)

    # ---- what users do -------------------------------------------------------------------------------------------

    def submit(self, submission: Submission) -> str:
        """Refused: pods are created with kubectl."""
        raise BackendError(
            f"jobs are not submitted through ADLRO here. Create pods or Jobs with schedulerName: "
            f"{self._options.scheduler_name} (kubectl apply)."
        )

    def cancel(self, job: str) -> None:
        """Refused: the owner of a pod would create it again."""
        raise BackendError(f"ADLRO does not delete pods. Delete {job}, or what owns it, with kubectl.")

    def close(self) -> None:
        """End the watches; pods go on."""
        self._reader.close()
        self._binder.close()
        self._api.close()


# ---- from the options ------------------------------------------------------------------------------------------------


def kubernetes_backend(options: KubernetesOptions) -> Kubernetes:
    """The back end of these options. Nothing is asked of the server yet."""
    return backend_at(door_of(options), options)


def backend_at(door: ClusterServer, options: KubernetesOptions, pause_s: float = 0.2) -> Kubernetes:
    """The back end of a server."""
    api = Api(door, options.timeout_s)
    reader = PodReader(api, pod_naming_of(options), Dividing(products_of(options), joined_of(options)), pause_s=pause_s)
    return Kubernetes(reader, api, options)


def pod_naming_of(options: KubernetesOptions) -> PodNaming:
    """How this site's words become ours."""
    if not is_family(options.default_family):
        raise ConfigError(f"[kubernetes] default_family is '{options.default_family}'; 'adlro speeds' lists families.")
    return PodNaming(
        options.scheduler_name,
        tuple(map(_rule, options.families)),
        options.default_family,
        options.user_label,
        is_family,
    )


def joined_of(options: KubernetesOptions) -> Joined:
    """Links and network, as the cluster file says."""
    if not options.cluster:
        return Joined(network=PLAIN_NETWORK)
    cluster = load_cluster(options.cluster)
    return Joined(cluster.name, {node.name: node.link for node in cluster.nodes}, cluster.network)


def products_of(options: KubernetesOptions) -> Products:
    """From product labels to models: as the config says, else as the catalogue does."""
    own = load_cluster(options.cluster).models if options.cluster else {}
    try:
        named = {product.lower(): find_gpu(model, own) for product, model in options.products.items()}
    except CatalogueError as error:
        raise ConfigError(f"[kubernetes.products]: {error}") from None
    known: dict[str, GpuModel | None] = {}

    def find(product: str) -> GpuModel | None:
        if product not in known:
            known[product] = named.get(product.lower()) or model_of(product, lambda word: find_gpu(word, own))
        return known[product]

    models = gpu_models()
    return Products(find, lambda name: [models[each] for each in near_models(name, models)], models[REFERENCE])


def _rule(table: PodFamilyTable) -> PodRule:
    return PodRule(*family_pattern(table.pattern, table.family, "kubernetes.families"), table.field)
