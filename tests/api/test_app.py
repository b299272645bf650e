"""What the API answers, and what it says when it does not."""

import gc
import json
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from tests.api.api_server import Client, client_for, serving
from tests.api.fake_service import FakeService, large_cluster

from adlro.api import models as api_models
from adlro.api import models_out as api_models_out
from adlro.api.answers import catalogue
from adlro.api.app import make_app
from adlro.api.pictures import Body, Eyes, picture_of
from adlro.api.settings import ApiSettings
from adlro.api.views import state_shown
from adlro.core.errors import BackendError, StoreError
from adlro.core.ports import JobState, LiveJob
from adlro.core.records import Job
from adlro.live.service import Compared, State, Tick

V1 = "/api/v1"


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
def client(service: FakeService) -> Client:
    return client_for(service)


def problem(answer: Any) -> dict[str, str]:
    """The error of an answer, which has its one shape."""
    found: dict[str, str] = answer.json()["error"]
    assert set(found) == {"what", "where", "expected", "do"}
    assert found["what"]
    assert "Traceback" not in answer.text
    return found


# ---- the names -------------------------------------------------------------------------------------------------------


def names(kind: type) -> set[str]:
    return {each.name for each in fields(kind)}


def test_the_names_in_json_are_those_of_the_records() -> None:
    assert set(api_models_out.JobOut.model_fields) == (names(LiveJob) - {"also"}) | {"is_hidden"}
    assert set(api_models_out.JobNeedsOut.model_fields) == names(Job)
    assert set(api_models_out.StateOut.model_fields) == (names(State) - {"placed"}) | {
        "counts",
        "partitions",
        "partition_word",
    }
    assert set(api_models_out.TickOut.model_fields) == names(Tick) - {"decisions", "answers"}
    assert set(api_models.JobIn.model_fields) == names(Job) - {"submit_s"}


def test_every_answer_has_exactly_the_names_that_the_document_promises(service: FakeService, client: Client) -> None:
    running = service.one(JobState.RUNNING).id
    answers: dict[str, type[BaseModel]] = {
        "/state": api_models_out.StateOut,
        "/cluster": api_models_out.ClusterOut,
        "/jobs": api_models_out.JobsOut,
        f"/jobs/{running}": api_models_out.JobOut,
        "/decisions": api_models_out.DecisionsOut,
        "/policies": api_models_out.PoliciesOut,
        "/alarms": api_models_out.AlarmsOut,
        "/drifts": api_models_out.DriftsOut,
        "/history": api_models_out.HistoryOut,
        "/history?since=0&limit=20": api_models_out.HistoryOut,
        "/past?node=volta0": api_models_out.PastOut,
        "/usage?user=ann&days=7": api_models_out.UsageOut,
        "/me": api_models_out.MeOut,
    }
    for path, model in answers.items():
        answer = client.get(V1 + path)
        assert answer.status_code == 200, answer.text
        found = model.model_validate(answer.json(), extra="forbid", strict=False)
        assert json.loads(found.model_dump_json()) == answer.json()


# ---- jobs ------------------------------------------------------------------------------------------------------------


def test_a_submitted_job_can_be_read_at_once_and_is_listed_after_the_next_tick(
    service: FakeService, client: Client
) -> None:
    sent = {
        "job": {"family": "learning", "gpus": 2, "models": ["t4"], "name": "né <i>", "user": "ann", "limit_s": 60},
        "command": ["echo", "$(rm -rf /)", "; ls"],
    }
    answer = client.post(f"{V1}/jobs", json=sent)
    assert answer.status_code == 201
    id = answer.json()["id"]
    assert answer.headers["location"] == f"{V1}/jobs/{id}"
    live = service.jobs[id]
    assert (live.job.gpus, live.job.models, live.job.user, live.job.name) == (2, frozenset({"t4"}), "ann", "né <i>")
    assert service.commands[id] == ("echo", "$(rm -rf /)", "; ls")
    assert client.get(f"{V1}/jobs/{id}").json()["job"]["name"] == "né <i>"
    service.turn()
    assert id in [job["id"] for job in client.get(f"{V1}/jobs?user=ann&limit=1000").json()["jobs"]]


def test_jobs_are_filtered_by_state_user_and_model(service: FakeService, client: Client) -> None:
    live = service.state().snapshot.jobs

    def asked(query: str) -> set[str]:
        found = client.get(f"{V1}/jobs?limit=1000&{query}").json()
        assert found["total"] == len(found["jobs"])
        return {job["id"] for job in found["jobs"]}

    assert asked("") == {job.id for job in live}
    assert asked("state=waiting") == {job.id for job in live if job.state == "waiting"} != set()
    assert asked("state=failed&state=cancelled") == {j.id for j in live if j.state in ("failed", "cancelled")}
    assert asked("user=ann") == {job.id for job in live if job.job.user == "ann"} != set()
    on_t4 = {job.id for job in live if any(part.model == "t4" for part in job.parts)}
    assert asked("model=t4&state=running") == {i for i in on_t4 if service.jobs[i].state == "running"} != set()
    assert asked("model=t4&state=waiting") == {job.id for job in live if job.state == "waiting"}
    assert asked("user=nobody") == set()


def test_pages_of_jobs_join_to_the_whole_list(client: Client) -> None:
    whole = client.get(f"{V1}/jobs?limit=1000").json()
    ids = [job["id"] for job in whole["jobs"]]
    pages = [client.get(f"{V1}/jobs?limit=7&offset={offset}").json() for offset in range(0, len(ids) + 7, 7)]
    assert [job["id"] for page in pages for job in page["jobs"]] == ids
    assert {page["total"] for page in pages} == {len(ids)}


def test_the_queue_is_listed_by_predicted_start_and_those_not_foreseen_last(client: Client) -> None:
    page = client.get(f"{V1}/jobs?state=waiting&limit=1000").json()
    middles = [page["starts"][job["id"]]["middle_s"] for job in page["jobs"]]
    known = [middle for middle in middles if middle is not None]
    assert known == sorted(known)
    assert middles == known + [None] * (len(middles) - len(known))
    assert None in middles


def test_a_cancelled_job_has_ended_and_cannot_be_cancelled_again(service: FakeService, client: Client) -> None:
    id = service.one(JobState.RUNNING).id
    assert client.delete(f"{V1}/jobs/{id}").json() == {"id": id}
    assert service.jobs[id].state is JobState.CANCELLED
    again = client.delete(f"{V1}/jobs/{id}")
    assert again.status_code == 409
    assert "ended already: cancelled" in problem(again)["what"]


def test_a_cancelled_job_is_shown_as_such_before_the_next_tick(service: FakeService, client: Client) -> None:
    id = service.one(JobState.RUNNING).id
    assert client.get(f"{V1}/jobs/{id}").json()["state"] == "running"
    assert client.get(f"{V1}/jobs/{id}/why").json()["state"] == "running"
    client.delete(f"{V1}/jobs/{id}")
    assert client.get(f"{V1}/jobs/{id}").json()["state"] == "cancelled"
    assert client.get(f"{V1}/jobs/{id}/why").json()["state"] == "cancelled"


def test_why_a_placed_job_runs_is_answered_from_the_state_without_the_daemon(
    service: FakeService, client: Client
) -> None:
    live = service.one(JobState.RUNNING)
    made = next(one for one in service.log if one.job == live.id)
    service.turn()
    service.latest = replace(service.latest, placed={live.id: made})
    service.broken = BackendError("the daemon does not answer")
    why = client.get(f"{V1}/jobs/{live.id}/why").json()
    assert (why["state"], why["dominant"], why["decision"]["id"]) == ("running", "running", made.id)
    assert why["text"].endswith(made.reason)
    assert client.get(f"{V1}/jobs/{service.one(JobState.WAITING).id}/why").status_code == 503
    service.broken = None
    client.delete(f"{V1}/jobs/{live.id}")
    assert client.get(f"{V1}/jobs/{live.id}/why").json()["state"] == "cancelled"


def test_a_job_is_found_by_the_ids_of_the_pods_that_it_consists_of(service: FakeService, client: Client) -> None:
    live = service.one(JobState.WAITING)
    service.jobs[live.id] = replace(live, also=("team.pod-7",))
    service.turn()
    assert client.get(f"{V1}/jobs/team.pod-7").json()["id"] == live.id
    assert client.get(f"{V1}/jobs/team.pod-7/why").json()["job"] == live.id


def test_a_job_that_is_not_there_is_a_404_for_every_question(client: Client) -> None:
    for method, path in (("GET", ""), ("GET", "/why"), ("DELETE", "")):
        answer = client.request(method, f"{V1}/jobs/424242{path}")
        assert answer.status_code == 404
        assert "424242" in problem(answer)["what"]


def test_why_a_job_waits_has_the_rule_the_places_and_the_start(service: FakeService, client: Client) -> None:
    why = client.get(f"{V1}/jobs/{service.one(JobState.WAITING).id}/why").json()
    assert why["dominant"] == "resources"
    assert why["rule"].startswith("What fits where")
    assert {place["model"] for place in why["places"]} == {"v100-sxm2-16gb", "t4", "mi50"}
    assert set(why["start"]) == {"job", "low_s", "middle_s", "high_s"}
    placed = client.get(f"{V1}/jobs/{service.one(JobState.RUNNING).id}/why").json()
    assert placed["decision"]["alternatives"][0]["chosen"] is True


# ---- the cluster, the state ------------------------------------------------------------------------------------------


def test_every_gpu_tells_who_runs_there_and_how_warm_it_is(service: FakeService, client: Client) -> None:
    found = client.get(f"{V1}/cluster").json()
    seen = {
        (node["name"], gpu["index"], job["id"])
        for node in found["nodes"]
        for gpu in node["gpus"]
        for job in gpu["jobs"]
        if job["is_index_known"]
    }
    held = [job for job in service.state().snapshot.jobs if job.state in ("running", "placed")]
    assert seen == {(part.node, index, job.id) for job in held for part in job.parts for index in part.indices}
    both = next(node for node in found["nodes"] if node["name"] == "both")
    assert [(gpu["index"], gpu["model"]) for gpu in both["gpus"]] == [
        (0, "v100-sxm2-16gb"), (1, "v100-sxm2-16gb"), (2, "t4"), (3, "t4"),
    ]  # fmt: skip
    assert found["nodes"][0]["gpus"][0]["telemetry"]["temperature"] is None
    assert found["nodes"][0]["gpus"][1]["telemetry"]["temperature"] > 0
    assert found["nodes"][-1]["down"] == "drained: fan replaced at noon"


def test_a_job_whose_gpus_are_not_known_is_shown_on_free_ones_of_its_model(service: FakeService) -> None:
    state = service.state()
    both = replace(service.one(JobState.RUNNING), id="9", parts=(replace_part(service, "both", "t4", 1),))
    state = replace(state, snapshot=replace(state.snapshot, jobs=(both,)))
    service.latest = state
    node = next(node for node in client_for(service).get(f"{V1}/cluster").json()["nodes"] if node["name"] == "both")
    assert [[job["id"] for job in gpu["jobs"]] for gpu in node["gpus"]] == [[], [], ["9"], []]
    assert node["gpus"][2]["jobs"][0]["is_index_known"] is False


def replace_part(service: FakeService, node: str, model: str, count: int) -> Any:
    return replace(service.one(JobState.RUNNING).parts[0], node=node, model=model, count=count, indices=())


def test_the_state_is_cut_to_what_a_screen_shows_and_counts_the_rest() -> None:
    service = FakeService(large_cluster(20), jobs=500)
    found = client_for(service).get(f"{V1}/state?waiting=10&ended=2").json()
    states = [job["state"] for job in found["snapshot"]["jobs"]]
    assert states.count("waiting") == 10 < found["counts"]["waiting"]
    assert states.count("running") == found["counts"]["running"]
    assert sum(state in ("finished", "failed", "cancelled") for state in states) == 2
    assert len(found["starts"]) == 10
    assert sum(found["counts"].values()) == 500


def test_an_unchanged_state_is_not_sent_again(service: FakeService, client: Client) -> None:
    for path in ("/state", "/cluster", "/jobs"):
        first = client.get(V1 + path)
        headers = {"If-None-Match": first.headers["etag"]}
        assert client.get(V1 + path, headers=headers).status_code == 304
        service.turn()
        then = client.get(V1 + path, headers=headers)
        assert then.status_code == 200
        assert then.headers["etag"] != first.headers["etag"]


def test_a_state_is_made_into_json_once_for_many_readers(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []

    def counted(*given: Any) -> Any:
        made.append(given)
        return state_shown(*given)

    monkeypatch.setattr("adlro.api.reading.state_shown", counted)
    client = client_for(service)
    answers = [client.get(f"{V1}/state").content for _ in range(5)]
    assert len(set(answers)) == len(made) == 1
    service.turn()
    assert client.get(f"{V1}/state").content != answers[0]
    assert len(made) == 2


def test_no_more_answers_are_kept_than_there_is_room_for(
    service: FakeService, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adlro.api.pictures.LARGEST_KEPT", 100_000)
    for offset in range(40):
        assert client.get(f"{V1}/jobs?limit=10&offset={offset}").json()["offset"] == offset
    picture = picture_of(service.state())
    for n in range(40):
        picture.keep((f"/{n}", b"", Eyes()), Body(bytes(9_000)))
    assert picture.size == sum(len(body.plain) for body in picture.bodies.values()) <= 100_000


def test_the_server_leaves_the_interpreter_as_it_found_it() -> None:
    before = gc.get_threshold(), sys.getswitchinterval()
    with serving():
        assert gc.get_threshold()[2] > before[0][2]
        assert sys.getswitchinterval() < before[1]
    assert (gc.get_threshold(), sys.getswitchinterval()) == before


def test_what_is_not_a_number_is_null(service: FakeService, client: Client) -> None:
    service.compared.append(Compared(1.0, float("nan"), float("inf"), None))
    service.turn()
    assert client.get(f"{V1}/history?limit=1").json()["history"] == [
        {"time_s": 1.0, "utilisation": None, "jct_s": None, "fallback_jct_s": None, "waiting": None, "running": None}
    ]


def test_decisions_come_page_by_page_and_by_job(service: FakeService, client: Client) -> None:
    first = client.get(f"{V1}/decisions?limit=4").json()
    assert first["next"] == first["decisions"][-1]["id"]
    ids = [one["id"] for one in first["decisions"]]
    while first["next"]:
        first = client.get(f"{V1}/decisions?limit=4&before={first['next']}").json()
        ids += [one["id"] for one in first["decisions"]]
    assert ids == [one.id for one in reversed(service.log)]
    of_one = client.get(f"{V1}/decisions?job={service.log[0].job}").json()["decisions"]
    assert {one["job"] for one in of_one} == {service.log[0].job}


# ---- what if, policies -----------------------------------------------------------------------------------------------


def test_a_question_is_played_forward(client: Client) -> None:
    asked = {"jobs": [{"job": {"family": "learning", "gpus": 4}}], "add_nodes": [["t4", 4, 2]]}
    found = client.post(f"{V1}/what-if", json=asked).json()
    assert found["jct_if_s"] < found["jct_s"]
    assert [start["job"] for start in found["starts"]] == ["new-1"]


def test_another_policy_can_be_set_by_name(service: FakeService, client: Client) -> None:
    listed = client.get(f"{V1}/policies").json()
    assert listed["current"] == "adlro"
    assert {"name", "summary", "preemptive", "resizes", "weighs", "needs"} == set(listed["policies"][0])
    answer = client.put(f"{V1}/policies/current", json={"name": "sjf"})
    assert (answer.status_code, answer.json()["current"], service.policy) == (200, "sjf", "sjf")


def test_an_unknown_policy_is_refused_with_the_name_that_was_meant(client: Client) -> None:
    answer = client.put(f"{V1}/policies/current", json={"name": "sjff"})
    assert answer.status_code == 409
    assert "Did you mean 'sjf'?" in problem(answer)["what"]


def test_a_policy_is_never_loaded_from_a_file(service: FakeService, tmp_path: Path) -> None:
    """The command line takes path.py:function for a policy; over the API that would be any code at all."""
    trap = tmp_path / "trap.py"
    trap.write_text(f"open({str(tmp_path / 'sprung')!r}, 'w')\ndef choose(view): ...\n")
    client = client_for(service)
    for name in (f"{trap}:choose", str(trap), f"{trap}.safetensors", "trap.py"):
        assert client.put(f"{V1}/policies/current", json={"name": name}).status_code in (409, 422)
        assert client.post(f"{V1}/what-if", json={"policy": name}).status_code in (409, 422)
    assert not (tmp_path / "sprung").exists()
    assert service.policy == "adlro"
    assert "sjf" in [policy["name"] for policy in catalogue()]


# ---- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "where"),
    [
        (b"{", "body"),
        (b'{"job": {}}', "body.job.family"),
        (b'{"job": {"family": "learning", "gpus": "2"}}', "body.job.gpus"),
        (b'{"job": {"family": "learning", "gpus": -1}}', "body.job.gpus"),
        (b'{"job": {"family": "learning", "priority": NaN}}', "body.job.priority"),
        (b'{"job": {"family": "learning", "name": "a\\u0007b"}}', "body.job.name"),
        (b'{"job": {"family": "learning", "name": "\\u202egnp"}}', "body.job.name"),
        (b'{"job": {"family": "learning", "name": "\\ud800"}}', "body.job.name"),
        (b'{"job": {"family": "learning"}, "comand": []}', "body.comand"),
        (b'{"job": {"family": "learning"}, "command": ["a\\u0000b"]}', "body.command.0"),
        (b'{"job": {"family": "learning"}, "environment": {"A=B": "1"}}', "body.environment.A=B.[key]"),
        (b'{"job": {"family": "learning"}, "directory": "../up"}', "body.directory"),
        (b"[]", "body"),
    ],
)
def test_a_wrong_submission_is_told_where_it_is_wrong(client: Client, body: bytes, where: str) -> None:
    answer = client.post(f"{V1}/jobs", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422, answer.text
    assert problem(answer)["where"] == where


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("gpus", "a whole number from 0 to 65536"),
        ("priority", "a number from 0 to 1"),
        ("limit_s", "a number of seconds above 0"),
        ("memory_gb", "a number of GB from 0 to 2000000"),
    ],
)
def test_an_amount_out_of_bounds_is_told_with_the_words_of_its_declaration(
    client: Client, field: str, expected: str
) -> None:
    answer = client.post(f"{V1}/jobs", json={"job": {"family": "learning", field: -1}})
    assert answer.status_code == 422, answer.text
    assert problem(answer)["expected"] == expected


@pytest.mark.parametrize("body", [b"\xff\xfe{", b"[" * 100_000, b'{"job": ' + b"1" * 5000 + b"}", b""])
def test_a_body_that_cannot_be_read_is_an_error_in_words(client: Client, body: bytes) -> None:
    answer = client.post(f"{V1}/jobs", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422)
    problem(answer)


def test_a_question_with_a_misspelt_name_is_refused_instead_of_answered_as_if_it_were_not_there(
    client: Client,
) -> None:
    answer = client.get(f"{V1}/jobs?stat=waiting")
    assert answer.status_code == 422
    assert "'stat'" in problem(answer)["what"]


def test_a_family_that_does_not_exist_is_a_conflict_with_the_daemons_words(client: Client) -> None:
    answer = client.post(f"{V1}/jobs", json={"job": {"family": "knitting"}})
    assert answer.status_code == 409
    assert "knitting" in problem(answer)["what"]


def test_a_share_of_a_gpu_is_for_one_gpu_only(client: Client) -> None:
    job = {"family": "learning", "share": 500}
    assert client.post(f"{V1}/jobs", json={"job": job}).status_code == 201
    assert client.post(f"{V1}/jobs", json={"job": job | {"gpus": 2}}).status_code == 409


def test_a_cluster_that_does_not_answer_is_a_503_in_words(service: FakeService, client: Client) -> None:
    id = service.one(JobState.WAITING).id
    service.gone()
    for answer in (
        client.post(f"{V1}/jobs", json={"job": {"family": "learning"}}),
        client.delete(f"{V1}/jobs/{id}"),
        client.get(f"{V1}/jobs/{id}/why"),
        client.post(f"{V1}/what-if", json={}),
    ):
        assert answer.status_code == 503
        assert "slurmrestd does not answer" in problem(answer)["what"]


def test_a_mistake_of_ours_is_a_number_to_the_asker_and_a_place_in_the_log(
    service: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    service.broken = RuntimeError("secret words")
    answer = client_for(service).post(f"{V1}/what-if", json={})
    assert answer.status_code == 500
    assert "secret words" not in answer.text
    record = next(record for record in caplog.records if record.name == "adlro.api")
    assert getattr(record, "number", "?") in problem(answer)["what"]
    assert "fake_service.py" in getattr(record, "where", "")
    assert "secret words" not in caplog.text


def test_before_the_first_reading_questions_are_answered_by_503(service: FakeService) -> None:
    class Early(FakeService):
        def state(self) -> State:
            raise StoreError("nothing was read yet.")

    client = client_for(Early())
    for path in ("/state", "/jobs", "/cluster", "/policies", "/jobs/1"):
        assert client.get(V1 + path).status_code == 503
    assert client.get("/healthz").status_code == 200


def test_every_address_that_is_not_there_and_every_method_that_is_not_for_it_is_told(client: Client) -> None:
    for path in ("/nothing", V1, f"{V1}/jobs/", f"{V1}/jobs/a/b/c", "/docs", "/openapi.json"):
        answer = client.get(path)
        assert answer.status_code == 404
        problem(answer)
    answer = client.put(f"{V1}/jobs")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, POST")
    problem(answer)


# ---- probes, pages, the document -------------------------------------------------------------------------------------


def test_health_readiness_and_metrics(service: FakeService) -> None:
    client = client_for(service, metrics=b"adlro_up 1\n")
    assert client.get("/healthz").json() == {"ok": True}
    assert client.get("/readyz").json() == {"ready": True, "why": ""}
    assert client.get("/metrics").text.startswith("adlro_up 1\n")
    assert client.get("/metrics").headers["content-type"].startswith("text/plain; version=0.0.4")
    service.ready = (False, "the last tick is 90 s old")
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()["why"]) == (503, "the last tick is 90 s old")
    assert client_for(service).get("/metrics").status_code == 404


def test_a_standby_is_ready_only_for_those_who_ask_about_standbys(service: FakeService) -> None:
    client = client_for(service)
    service.ready = (False, "a standby: adlro-1 leads.")
    assert client.get("/readyz").status_code == client.get("/readyz?standby=false").status_code == 503
    assert client.get("/readyz?standby=true").json()["ready"]
    service.ready = (False, "the first turn is still running.")
    assert client.get("/readyz?standby=true").status_code == 503


def test_the_dashboard_is_served_with_a_policy_that_reaches_nothing_else(service: FakeService, tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "index.html").write_text("<!doctype html>é")
    (tmp_path / "parts" / "a.js").write_text("export {}")
    (tmp_path / "notes.txt").write_text("not for all")
    app = make_app(service, ApiSettings(), dashboard=tmp_path)
    client = Client(app, {})
    home = client.get("/")
    assert home.text == "<!doctype html>é"
    assert home.headers["content-type"] == "text/html; charset=utf-8"
    csp = home.headers["content-security-policy"]
    assert "default-src 'none'" in csp
    assert "unsafe" not in csp
    assert "http" not in csp
    assert client.get("/parts/a.js").headers["content-type"] == "text/javascript; charset=utf-8"
    for path in ("/notes.txt", "/../api.py", "/%2e%2e/api.py", "/parts/../../x", "/parts"):
        assert client.get(path).status_code == 404


def test_large_answers_are_compressed_for_those_who_take_it(client: Client) -> None:
    plain = client.get(f"{V1}/state", headers={"Accept-Encoding": "identity"})
    packed = client.get(f"{V1}/state", headers={"Accept-Encoding": "gzip"})
    assert packed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert plain.json() == packed.json()
    assert int(packed.headers["content-length"]) < int(plain.headers["content-length"]) / 4


def test_the_document_names_every_address_its_errors_and_who_may_ask(client: Client) -> None:
    document = client.get(f"{V1}/openapi.json").json()
    table = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert f"| `{method.upper()}` | `{path}` |" in table
            assert operation["description"]
            codes = set(operation["responses"])
            assert {"429", "500", "421", "413"} <= codes
            if operation["security"]:
                assert "401" in codes
            if method != "get":
                assert {"403", "409", "422"} <= codes
            for code, answer in operation["responses"].items():
                assert answer["description"]
                if int(code) >= 400 and (path, code) != ("/readyz", "503"):
                    schema = answer["content"]["application/json"]["schema"]
                    assert schema == {"$ref": "#/components/schemas/ErrorOut"}
    assert document["components"]["schemas"]["SubmissionIn"]["example"]
