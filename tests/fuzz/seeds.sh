#!/bin/sh
# Makes seeds and dictionaries of the project's own files: `tests/fuzz/seeds.sh DIR` fills DIR/<target>/ and DIR/<target>.dict.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$1/job_file" "$1/importer" "$1/template" "$1/http"
out=$(cd "$1" && pwd)
cd "$root"

name() { echo "$1" | tr / _; }

# Constants and arguments of tests that are raw strings: OUT PREFIX FILE.
raw_strings() {
    awk -v out="$1/$2" '
        !open && match($0, /r#"/) { open = 1; n++; file = sprintf("%s_%03d", out, n); $0 = substr($0, RSTART + 3) }
        open { at = index($0, "\"#"); if (at) { printf "%s", substr($0, 1, at - 1) > file; close(file); open = 0 } else print > file }
    ' "$3"
}

# Requests of the document, with a header.
grep -oE '(GET|POST|PUT|DELETE) /[^`]*' docs/API.md | while read -r method path; do
    printf '%s\nstate=running,failed&since=2026-01-31T08:00:00Z&limit=3&follow=1\nBearer trainyard_1000.ci_%064d' \
        "$(echo "$path" | sed 's/{[a-z]*}/x%2Fy/g')" 7 > "$out/http/$(name "$method$path")"
done

# Frames of an exec: kind, length, payload.
printf '\000\005\000\000\000hello\003\004\000\000\000\030\000\120\000\006\000\000\000\000' > "$out/http/frames_client"
printf '\001\002\000\000\000ok\007\004\000\000\000\002\000\000\000\005\002\000\000\000no\004\004\000\000\000\377\377\377\377' > "$out/http/frames_daemon"

for file in $(find jobs.d tests/data/jobs -name '*.toml' ! -name '*.template.toml'); do
    cp "$file" "$out/job_file/$(name "$file")"
    # The job as a template, and a job that only names it.
    { grep -Ev '^(state|rerun|template) *=' "$file"; printf '\n[template.params.n]\ndefault = 1\n\000template = "t"\n[with]\nn = 2\n'; } \
        > "$out/template/$(name "$file")"
done
for file in $(find tests/data/jobs -name '*.template.toml'); do
    for job in $(grep -rlE '^(template|with)' tests/data/jobs --include='*.toml'); do
        { cat "$file"; printf '\000'; sed 's/^template = .*/template = "t"/' "$job"; printf '\000command = "x"\n[env]\nA = 1\n'; } \
            > "$out/template/$(name "$file-$job")"
    done
done
# What the language has beyond those, a job a paragraph.
awk -v out="$out/job_file/own_" 'BEGIN { RS = "\n%%\n" } { file = sprintf("%s%03d", out, NR); print > file; close(file) }' tests/fuzz/jobs.txt
raw_strings "$out/importer" import src/import/tests.rs
# format! doubles braces, and fills others.
for file in "$out"/importer/import_*; do
    sed -i -e 's/{{/{/g; s/}}/}/g; s/{job}//; s/{role}//' "$file"
done
# A job of each kind of Kubeflow, as the tests make them.
for kind in TFJob:tf:Chief PyTorchJob:pytorch:Master MXJob:mx:Scheduler XGBoostJob:xgb:Master PaddleJob:paddle:Worker JAXJob:jax:Worker MPIJob:mpi:Launcher; do
    IFS=: read -r kind short role <<X
$kind
X
    cat > "$out/importer/$kind" <<X
apiVersion: kubeflow.org/v1
kind: $kind
metadata: {name: k, labels: {a: b}}
spec:
  runPolicy: {suspend: true, backoffLimit: 2, activeDeadlineSeconds: 90, cleanPodPolicy: None}
  ${short}ReplicaSpecs:
    $role: &r
      replicas: 1
      restartPolicy: OnFailure
      template:
        spec:
          containers:
            - {name: c, image: lab/x, command: [python, x.py], args: [-a, "1"], workingDir: /w, resources: {limits: {cpu: 500m, memory: 1Gi, nvidia.com/gpu: 1}}, ports: [{containerPort: 22, name: p}], env: [{name: A, value: "1"}]}
    PS: *r
X
done
cat > "$out/importer/TrainJob" <<X
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: t}
spec:
  suspend: true
  runtimeRef: {name: torch-distributed}
  trainer: {numNodes: 3, numProcPerNode: 2, image: lab/t, command: [torchrun, x.py], args: ["-a"], env: [{name: A, value: b}], resourcesPerNode: {limits: {cpu: "4", memory: 8Gi}}}
X
find "$out" -type f -size 0 -delete

# Words of the key table and of the readers, as libFuzzer has them.
words() { grep -hoE '"[A-Za-z$<][][A-Za-z0-9_./:$<> -]{1,40}"' "$@" | grep -v ' ' | sort -u; }
keys() { grep -oE '^    (now|later)\("[^"]+"' src/spec/keys.rs | sed 's/.*"\(.*\)"/\1/'; }
{
    keys | tr . '\n' | grep -v '*' | sort -u | sed 's/.*/"& = "/'
    keys | sed 's/\*/n/g; s/.*/"\\x0a[&]\\x0a"/' | sort -u
    words src/spec/keys.rs src/spec/platform.rs src/spec/strategy.rs src/contract/catalogue.rs
    for word in '${n}' '${{inputs.n}}' '1e-4' 'nan' '-inf' '0x7fffffffffffffff' '9223372036854775807' '1979-05-27T07:32:00Z' "'''" '\"\"\"' \
        '64MiB' '1.5h' '10000d' 'secret:n' 'https://h/p' '\\u0000' '\\U0010FFFF' '[[' ']]' 'a=b@c' 'oci:/p:t'; do printf '"%s"\n' "$word"; done
} > "$out/job_file.dict"
{
    grep -oE 'route\(|"/[^"]*"|(param|needed)\("[a-z_]+"|OneOf\(&\[[^]]*' src/api/routes.rs | grep -oE '"[^"]+"' | sed 's/{[a-z]*}/x/g'
    for word in '%2F' '%00' '%FF' '&' '=' 'Bearer ' 'trainyard_1000.ci_' '2026-01-31T08:00:00Z'; do printf '"%s"\n' "$word"; done
} | sort -u > "$out/http.dict"
{ cat "$out/job_file.dict"; for word in '\x00' 'template = \"t\"\x0a' '[with]\x0an = ' '[template.params.n]\x0a'; do printf '"%s"\n' "$word"; done; } > "$out/template.dict"
{
    words $(find src/import -name '*.rs' ! -name tests.rs) | sed 's/"\(.*\)"/"\1"\n"\1: "\n"\\"\1\\": "/'
    for word in '&a ' '*a' '<<: ' '!!str ' '|-\x0a' '>\x0a' '---\x0a' '\x0a...\x0a' '%YAML 1.2\x0a' '? ' '- ' '{' '}' '[]' '~' '.inf' '1e999' '-0' \
        '0x10' '100m' '1Gi' '18446744073709551615' '-9223372036854775808' '<% $parameters.a %>' '<% $secrets.a %>' '\\u0000' '\"\"'; do
        printf '"%s"\n' "$word"
    done
} > "$out/importer.dict"
