"""A small trace in each format, written by hand: what its jobs must come to stands beside it."""

from typing import Final

SWF = """\
; Computer: a machine by hand
; UnixStartTime: 1000000000
;
  1   0  5  100  4 -1 -1  4  200 -1 1 12  1  7 -1 -1 -1 -1
  2  10  0   50 -1 -1 -1  2   -1 -1 0 13  1 -1 -1 -1 -1 -1
  3  20 -1   -1  1 -1 -1  1   60 -1 5 13  1 -1 -1 -1 -1 -1
  4  30  1   30  8 -1 -1  8   20 -1 1 12  1  7 -1 -1 -1 -1 {1,2} q_1d 1:ppn=8
"""

SACCT = """\
JobID|User|JobName|Partition|State|Submit|Start|End|ElapsedRaw|Timelimit|ReqTRES|AllocTRES
101|ann|train|gpu|COMPLETED|2024-03-04T08:00:00|2024-03-04T08:01:00|2024-03-04T09:01:00|3600|1-00:00:00|cpu=8,mem=64G,gres/gpu:a100=2|billing=8,cpu=8,gres/gpu=2,mem=64G,node=1
101.batch||batch||COMPLETED|2024-03-04T08:01:00|2024-03-04T08:01:00|2024-03-04T09:01:00|3600|||cpu=8,mem=64G
102|bob|prep|cpu|FAILED|2024-03-04T09:00:00|2024-03-04T09:00:10|2024-03-04T09:00:40|30|10:00|cpu=4,mem=512M|cpu=4,mem=512M
103|bob|prep|cpu|CANCELLED by 7|2024-03-04T09:10:00|None|2024-03-04T09:11:00|0|10:00|cpu=4,mem=512M|
104|ann|train|gpu|RUNNING|2024-03-04T09:20:00|2024-03-04T09:21:00|Unknown|60|UNLIMITED|cpu=8|cpu=8,gres/gpu=1
"""

SACCT_JSON = """\
{"meta": {}, "jobs": [
 {"job_id": 1, "user": "ann", "name": "train", "state": {"current": ["COMPLETED"]},
  "time": {"submission": 1700000000, "start": 1700000010, "end": 1700000110, "elapsed": 100,
           "limit": {"set": true, "infinite": false, "number": 5}},
  "tres": {"allocated": [{"type": "cpu", "name": "", "count": 8}, {"type": "gres", "name": "gpu", "count": 4}],
           "requested": []}},
 {"job_id": 2, "user": "bob", "name": "prep", "state": "FAILED",
  "time": {"submission": 1700000060, "start": 1700000070, "end": 1700000090, "elapsed": 20, "limit": 2},
  "tres": {"allocated": [{"type": "cpu", "name": null, "count": 2}]}}
]}
"""

SUPERCLOUD = """\
id_job,id_user,cpus_req,partition,state,timelimit,time_submit,time_start,time_end,tres_alloc,job_type
1.0,42.0,20,normal,3,4294967295,1609535912,1609535920,1609536220,"1=20,2=170000,4=1,5=20",OTHER
1.0,43.0,40,normal,3,1440,1609536000,1609536010,1609539610,"1=40,2=340000,4=2,5=40,1002=2",LLSUB:BATCH
"""

NREL = """\
job_id,user,account,partition,qos,wallclock_req,nodes_req,processors_req,gpus_req,mem_req,submit_time,start_time,end_time,run_time,state,name
5,u1,a,p,normal,172800.0,10,10,0,0.0,2019-01-01 08:55:55,2019-01-01 08:55:56,2019-01-02 12:39:41,99825.0,COMPLETED,n1
5,u1,a,p,normal,3600.0,1,4,2,0.0,2019-01-01 09:55:55,2019-01-01 09:55:56,2019-01-01 10:05:56,600.0,COMPLETED,n1
"""

PHILLY = """\
timestamp,duration,num_gpus,gpu_time,cluster
2017-10-09 07:01:55,66.0,1,66.0,11cb48
2017-10-09 06:13:03,2951.0,8,23608.0,6214e9

"""

PHILLY_SIZES = """\
#job id,arrival time (sec),topology,shape,size,duration (sec)
0,0.0,CLOS,1,1,3613.0
1,266563.0,CLOS,1,16,322.0
"""

OPENB = """\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
p0,12000,16384,1,1000,,LS,Running,0,1000,100
p1,6000,12288,1,460,T4|P100,BE,Succeeded,50,150,50
p2,2000,1024,0,0,,Burstable,Failed,60,70,60
p3,2000,1024,8,1000,,Guaranteed,Pending,70,90,
"""

DLRM = """\
instance_sn,role,app_name,cpu_request,cpu_limit,gpu_request,gpu_limit,rdma_request,rdma_limit,memory_request,memory_limit,disk_request,disk_limit,max_instance_per_node,creation_time,scheduled_time,deletion_time
i0,HN,app_0,12,12,1,1,25,25,120.0,120.0,640.0,800.0,8,,,
i1,CN,app_1,4,4,0,0,25,25,16.0,16.0,640.0,800.0,8,500,501,1500
"""

HELIOS = """\
job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
1,u1,vc1,8,48,1,COMPLETED,2020-04-01 00:08:00,2020-04-01 00:09:00,2020-04-01 01:09:00,3600,60
2,u2,vc2,0,4,1,FAILED,2020-04-01 00:10:00,2020-04-01 00:10:05,2020-04-01 00:10:45,40,5
3,u2,vc2,1,4,1,CANCELLED,2020-04-01 00:11:00,,2020-04-01 00:12:00,0,60
"""

SIA = """\
name,time,application,num_replicas,batch_size
bert-0,163.5,bert,6,384
cifar10-1,314.5,cifar10,8,4096
"""

GAVEL = (
    "ResNet-18 (batch size 128)\tpython3 main.py --data_dir=%s/cifar10\tcifar10\t--num_steps\t1\t3600\t2\t1\t-1.0\t0\n"
    "A3C\tpython3 main.py; rm -rf /\t../../etc\t--max-steps\t0\t100\t1\t1\t-1.0\t30.5\n"
)

OWN = """\
submit_s,work,gpus,share,family,user,name,models,limit_s,priority
0,100,2,1000,learning,ann,train,V100|A100,300,0.75
5.5,10,1,250,data,bob,prep,,,
"""

SAMPLES: Final = {
    "csv": OWN, "swf": SWF, "sacct": SACCT, "sacct-json": SACCT_JSON, "supercloud": SUPERCLOUD, "nrel": NREL,
    "philly": PHILLY, "philly-sizes": PHILLY_SIZES, "openb": OPENB, "dlrm": DLRM, "helios": HELIOS, "sia": SIA,
    "gavel": GAVEL,
}  # fmt: skip

EXPECTED: Final[dict[str, dict[str, list[float]]]] = {
    "csv": {"submit": [0, 5.5], "gpus": [2, 1], "work": [100, 10]},
    "swf": {"submit": [0, 10, 30], "gpus": [4, 2, 8], "work": [400, 100, 240], "estimate": [800, 100, 160]},
    "sacct": {"submit": [0, 3600], "gpus": [2, 0], "work": [7200, 30], "limit": [86_400, 600], "cpus": [8000, 4000]},
    "sacct-json": {"submit": [0, 60], "gpus": [4, 0], "work": [400, 20], "limit": [300, 120], "cpus": [8000, 2000]},
    "supercloud": {"submit": [0, 88], "gpus": [0, 2], "work": [300, 7200], "estimate": [300, 172_800]},
    "nrel": {"submit": [0, 3600], "gpus": [0, 2], "work": [99_825, 1200], "estimate": [172_800, 7200]},
    "philly": {"submit": [0, 2932], "gpus": [8, 1], "work": [23_608, 66]},
    "philly-sizes": {"submit": [0, 266_563], "gpus": [1, 16], "work": [3613, 5152]},
    "openb": {"submit": [0, 50, 60], "gpus": [1, 1, 0], "share": [1000, 460, 1000], "work": [900, 46, 10]},
    "dlrm": {"submit": [0, 500], "gpus": [1, 0], "work": [2_678_400, 1000]},
    "helios": {"submit": [0, 120], "gpus": [8, 0], "work": [28_800, 40], "cpus": [48_000, 4000]},
    "sia": {"submit": [0, 151], "gpus": [6, 8], "work": [6 * 731, 8 * 256]},
    "gavel": {"submit": [0, 30.5], "gpus": [2, 1]},
}
"""Columns of the jobs that each sample comes to."""
