"""Stop a running job of Slurm's so that it waits again: its own signal first, and its requeue when its time is over.

The job's comment says that it is stopping, and when it is put back. So a daemon that was killed in between goes on from
there, and a job that ends because of its signal is known as one that has to run again.
"""

from adlro.backends.slurm.comments import ASKED, JobSignal, signal_in, signal_of_script, stop_mark
from adlro.backends.slurm.ways import CommandWay, KnownJob, RefusedError


def stop_running(told: KnownJob, commands: CommandWay, now_s: float, grace_s: float) -> str:
    """Warn a running job that wants it, or requeue one whose time is over; a remark.

    It is called again until the job waits. `grace_s` is the most time that a job may have.
    """
    id = told.live.id
    if told.has_ended:  # it has our words already, and Slurm lets nobody change those of a job that has ended
        commands.put_back(id)
        return "it ended after its signal, and is put back"
    proof = told.admin_comment(submit=f"{told.live.job.submit_s:.0f}")
    is_warned = told.stop not in ("", ASKED)
    if is_warned and now_s < float(told.stop):
        return f"it is put back in {float(told.stop) - now_s:.0f} s"
    signal = None if is_warned else signal_wanted(told, commands)
    if signal is None:
        commands.put_back(id, told.comment(held="yes", stopping=""), proof)
        return "it is put back"
    seconds = min(signal.seconds, grace_s)
    # First the word, then the signal. Who dies in between sends it again: better twice than never.
    commands.note_both(id, told.comment(held="yes", stopping=stop_mark(ASKED, told.restarts)), proof)
    commands.warn(id, signal.name, signal.to_script)
    moment = f"{now_s + seconds:.0f}"
    commands.note_both(id, told.comment(held="yes", stopping=stop_mark(moment, told.restarts)), proof)
    return f"it was sent {signal.name}, and is put back in {seconds:.0f} s"


def signal_wanted(told: KnownJob, commands: CommandWay) -> JobSignal | None:
    """The signal that a job wants before it is ended: by its comment, else by its script; None if it wants none.

    Slurm shows nobody a --signal that was given to sbatch as an option.
    """
    if word := told.words.get("signal"):
        return signal_in(word)
    try:
        return signal_of_script(commands.script(told.live.id))
    except RefusedError:
        return None
