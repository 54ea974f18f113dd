"""Compares what a task finds under contract "sagemaker" with what Amazon's own toolkit makes of the same files.

    sagemaker.py TRAINYARD      (needs the package sagemaker-training, on a machine with /opt/ml free to use)
"""
import json
import os
import subprocess
import sys
import tempfile

# What the platform's machines say of themselves, not the toolkit.
OURS = {'SM_NUM_CPUS', 'SM_NUM_GPUS', 'SM_NUM_NEURONS', 'SM_USER_ENTRY_POINT', 'SM_MODULE_NAME', 'SM_MODULE_DIR',
        'SM_FRAMEWORK_PARAMS', 'SM_TRAINING_ENV', 'SM_LOG_LEVEL', 'SM_NETWORK_INTERFACE_NAME'}

shown = json.loads(subprocess.run([sys.argv[1], 'contract', 'show', 'sagemaker', '--json'],
                                  check=True, capture_output=True, text=True).stdout)['example']
with tempfile.TemporaryDirectory() as base:
    os.environ['SAGEMAKER_BASE_DIR'] = base
    for path, content in shown['files']:
        target = base + path[len('/opt/ml'):]
        os.makedirs(os.path.dirname(target), exist_ok=True)
        open(target, 'w').write(content)
    os.makedirs(base + '/input/data/train')
    from sagemaker_training import environment
    theirs = environment.Environment()
    variables = {name: str(value).replace(base, '/opt/ml') for name, value in theirs.to_env_vars().items()}
    arguments = theirs.to_cmd_args()

differences = []
for name, value in sorted(variables.items()):
    own = shown['env'].get(name)
    same = own == value
    if not same:
        try:
            same = json.loads(own) == json.loads(value)
        except (TypeError, ValueError):
            pass
    if name in OURS:
        print('  ours  %s=%s (theirs: %s)' % (name, own, value[:80]))
    elif not same:
        differences.append('%s: ours %r, theirs %r' % (name, own, value))
# What the environment tells once more as a whole, but for what is the machine's.
whole, own = json.loads(variables['SM_TRAINING_ENV']), json.loads(shown['env']['SM_TRAINING_ENV'])
for key in sorted(set(whole) | set(own)):
    of_machine = key in ('job_name', 'num_cpus', 'num_gpus', 'user_entry_point', 'module_name', 'network_interface_name')
    if (key in whole) != (key in own) or not of_machine and whole[key] != own[key]:
        differences.append('SM_TRAINING_ENV, %s: ours %r, theirs %r' % (key, own.get(key), whole.get(key)))
words = json.loads(shown['env']['SM_USER_ARGS'])
if words != arguments:
    differences.append('arguments: ours %r, theirs %r' % (words, arguments))
print('%d variables compared' % (len(variables) - len(OURS)))
print('\n'.join(differences) or 'all alike')
sys.exit(bool(differences))
