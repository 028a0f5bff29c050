#!/usr/bin/env bash
# A standalone Spark cluster on this machine, in the foreground; Ctrl-C ends it:
#
#   deploy/spark/cluster.sh [number of workers, by default 2]
#
# It listens on the loopback address only. PORT (7077) is the master's, WEB_PORT (8080) its page's;
# CORES (1) and MEMORY (1g) are each worker's; WORK (./var/spark) keeps the executors' folders;
# PYTHON is one that has the extra spark installed.
set -euo pipefail

workers=${1:-2}
python=${PYTHON:-python3}
port=${PORT:-7077}
work=${WORK:-var/spark}
export SPARK_LOCAL_IP=127.0.0.1
export SPARK_MASTER_OPTS="-Dspark.master.rest.enabled=false ${SPARK_MASTER_OPTS:-}"

# PYTHON's Spark, and a Java that it can use.
settings=$("$python" -c '
import os, shlex
from skylarkmq.spark.submit import ready_home

ready_home(os.environ)
for name in ("SPARK_HOME", "JAVA_HOME", "PYSPARK_PYTHON"):
    if name in os.environ:
        print(f"export {name}={shlex.quote(os.environ[name])}")
')
eval "$settings"

class() { exec "$SPARK_HOME/bin/spark-class" "org.apache.spark.deploy.$@"; }

processes=()
end() { trap - EXIT INT TERM; kill "${processes[@]}" 2>/dev/null || true; wait; }
trap end EXIT
trap 'exit 0' INT TERM

class master.Master --host 127.0.0.1 --port "$port" --webui-port "${WEB_PORT:-8080}" &
processes+=($!)
for ((number = 1; number <= workers; number++)); do
    mkdir -p "$work/worker-$number"
    class worker.Worker --host 127.0.0.1 --webui-port 0 --cores "${CORES:-1}" \
        --memory "${MEMORY:-1g}" --work-dir "$(cd "$work/worker-$number" && pwd)" \
        "spark://127.0.0.1:$port" &
    processes+=($!)
done
wait -n  # none of them ends by itself
exit 1
