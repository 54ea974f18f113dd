"""Compares what a task finds under contract "tione/1" with what Tencent's own launcher makes of the same files.

    tione.py TRAINYARD      (needs the packages ti-containers, six and retrying)
"""
import json
import os
import subprocess
import sys
import tempfile
import tomllib

from ti_containers import config, constant

# What each becomes as an argument is another thing: a flag, numbers, lists, objects, nothing, blanks, other letters.
PARAMS = '''
flag = true
off = false
lr = 1e-4
small = 1e-7
big = 1e16
count = 3
list = [1, 2]
mixed = ["1", 1.5, true, "it's", 'a "b"']
object = '{"x": 1, "y": [null, true, {"z": "w"}]}'
null = "null"
text = "a b"
number = "1.10"
nothing = ""
blank = "  "
name = "训练"
'''
# What the platform's machines say of themselves, and what is told by its images.
OURS = {'TM_NUM_CPUS', 'TM_NUM_GPUS', 'TM_NETWORK_INTERFACE_NAME', 'TM_USER_ENTRY_POINT'}
CONFIG = '/opt/ml/input/config/'
# Which files the launcher reads, by its names for their paths.
READ = {'HYPERPARAMETERS_PATH': 'hyperparameters.json', 'RESOURCE_CONFIG_PATH': 'resourceconfig.json',
        'INPUT_DATA_CONFIG_PATH': 'inputdataconfig.json'}


def of_example(trainyard):
    """Variables and files of the example that the contract has."""
    shown = subprocess.run([trainyard, 'contract', 'show', 'tione/1', '--json'], check=True, capture_output=True, text=True)
    return json.loads(shown.stdout)['example']


def arguments_of_job(trainyard, directory):
    """The words behind the script, of a job with all kinds of parameters."""
    path = os.path.join(directory, 'job.toml')
    with open(path, 'w') as job:
        job.write('contract = "tione/1"\ncommand = ["python3", "t.py"]\n[params]' + PARAMS)
    shown = subprocess.run([trainyard, '--root', directory, 'show', '--file', path, '--effective', '--json'],
                           check=True, capture_output=True, text=True)
    return json.loads(shown.stdout)['roles'][0]['args'][2:]


def theirs(files):
    """Their launcher's configuration by these files."""
    with tempfile.TemporaryDirectory() as base:
        for path, content in files:
            target = base + path
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(target, 'w') as file:
                file.write(content)
        for name, file in READ.items():
            setattr(constant, name, base + CONFIG + file)
        loaded = config.Config()
        loaded.load()
        return loaded


def as_texts(params):
    """A table of TOML as the platform's file has it: texts, of which `json.loads` makes the values."""
    text = lambda value: value if isinstance(value, str) else json.dumps(value)
    return {name: text(value) for name, value in tomllib.loads(params).items()}


def main(trainyard):
    differences = []
    example = of_example(trainyard)
    config_of_example = theirs(example['files'])
    variables = {name: value for name, value in config_of_example.get_envs().items() if name not in OURS}
    for name, value in sorted(variables.items()):
        if example['env'].get(name) != value:
            differences.append('%s: ours %r, theirs %r' % (name, example['env'].get(name), value))
    hyperparameters = CONFIG + READ['HYPERPARAMETERS_PATH']
    files = [(path, content) for path, content in example['files'] if path != hyperparameters]
    wanted = theirs(files + [(hyperparameters, json.dumps(as_texts(PARAMS)))]).get_args()
    with tempfile.TemporaryDirectory() as directory:
        own = arguments_of_job(trainyard, directory)
    if own != wanted:
        differences.append('arguments: ours %r, theirs %r' % (own, wanted))
    print('%d variables and %d arguments compared' % (len(variables), len(wanted)))
    print('\n'.join(differences) or 'all alike')
    return bool(differences)


sys.exit(main(sys.argv[1]))
