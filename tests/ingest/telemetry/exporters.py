"""Stand-ins for exporters: pages with the published names and labels, and a server on this machine that gives them."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

DCGM = {
    "DCGM_FI_DEV_GPU_UTIL": 80.0,
    "DCGM_FI_DEV_GPU_TEMP": 61.0,
    "DCGM_FI_DEV_SLOWDOWN_TEMP": 90.0,
    "DCGM_FI_DEV_MEMORY_TEMP": 57.0,
    "DCGM_FI_DEV_FB_USED": 40_000.0,
    "DCGM_FI_DEV_FB_FREE": 40_000.0,
    "DCGM_FI_PROF_DRAM_ACTIVE": 0.25,
    "DCGM_FI_DEV_MEM_COPY_UTIL": 60.0,
    "DCGM_FI_DEV_POWER_USAGE": 300.0,
    "DCGM_FI_DEV_SM_CLOCK": 1200.0,
    "DCGM_FI_DEV_MAX_SM_CLOCK": 1410.0,
    "DCGM_FI_DEV_MEM_CLOCK": 1593.0,
    "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": 4.0,
    "DCGM_FI_DEV_XID_ERRORS": 0.0,
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": 7.0,
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": 0.0,
}
AMD = {
    "gpu_gfx_activity": 55.0,
    "gpu_junction_temperature": 70.0,
    "gpu_memory_temperature": 60.0,
    "gpu_used_vram": 98_304.0,
    "gpu_total_vram": 196_608.0,
    "gpu_umc_activity": 30.0,
    "gpu_package_power": 375.0,
    "gpu_ecc_correct_total": 1.0,
    "gpu_ecc_uncorrect_total": 0.0,
}
AMD_CLOCKS = {"GPU_CLOCK_TYPE_SYSTEM": 1533.0, "GPU_CLOCK_TYPE_MEMORY": 1292.0, "GPU_CLOCK_TYPE_VIDEO": 900.0}


def dcgm_page(node: str, gpus: int = 2, name: str = "NVIDIA A100-SXM4-80GB", **changed: float) -> str:
    """A page of NVIDIA's DCGM exporter; `changed` are other values for some fields."""
    lines = []
    for series, value in {**DCGM, **changed}.items():
        lines += [f"# HELP {series} What it is.", f"# TYPE {series} {'counter' if 'ECC' in series else 'gauge'}"]
        lines += [
            f'{series}{{gpu="{g}",UUID="GPU-{node}-{g}",device="nvidia{g}",modelName="{name}",Hostname="{node}",'
            f'DCGM_FI_DRIVER_VERSION="535.104.12"}} {value}'
            for g in range(gpus)
        ]
    return "\n".join(lines) + "\n"


def amd_page(node: str, gpus: int = 2, name: str = "AMD Instinct MI300X OAM", prefix: str = "") -> str:
    """A page of AMD's device metrics exporter."""
    lines = []
    for g in range(gpus):
        labels = (
            f'card_model="102-G30211-0C",card_series="{name}",card_vendor="AMD",gpu_id="{g}",gpu_partition_id="0",'
            f'gpu_uuid="ccff-{node}-{g}",hostname="{node}",serial_number="6924{g}"'
        )
        lines += [f"{prefix}{series}{{{labels}}} {value}" for series, value in AMD.items()]
        lines += [
            f'{prefix}gpu_clock{{{labels},clock_index="{number}",clock_type="{kind}"}} {value}'
            for number, (kind, value) in enumerate(AMD_CLOCKS.items())
        ]
    return "\n".join(lines) + "\n"


Answer = Callable[[BaseHTTPRequestHandler], None]


def says(body: bytes | str, code: int = 200, **headers: str) -> Answer:
    """An answer that is always the same."""
    data = body.encode() if isinstance(body, str) else body

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(code)
        for name, value in {"Content_Length": str(len(data)), **headers}.items():
            request.send_header(name.replace("_", "-"), value)
        request.end_headers()
        request.wfile.write(data)

    return answer


@contextmanager
def served(answer: Answer) -> Iterator[str]:
    """The address of a server on this machine that gives this answer to every request."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            try:
                answer(self)
            except OSError:  # the other side hung up, as it may
                self.close_connection = True

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            pass

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
