# Mounts over the directory argv[1], in the mount namespace of process argv[2] if there is one, a FUSE file system that says
# that it is there and answers nothing else: who asks waits in the kernel, and no signal ends that.
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
place = sys.argv[1]
fuse = os.open('/dev/fuse', os.O_RDWR)
if len(sys.argv) > 2 and libc.setns(os.open(f'/proc/{sys.argv[2]}/ns/mnt', os.O_RDONLY), 0x20000):
    raise OSError(ctypes.get_errno(), 'setns')
os.makedirs(place, exist_ok=True)
options = f'fd={fuse},rootmode=40000,user_id=0,group_id=0,allow_other'.encode()
if libc.mount(b'silent', place.encode(), b'fuse.silent', 0, options):
    raise OSError(ctypes.get_errno(), 'mount')
question = os.read(fuse, 1 << 17)
unique = struct.unpack_from('=Q', question, 8)[0]
body = struct.pack('=IIIIHHIIHH', 7, 31, 0, 0, 0, 0, 4096, 1, 0, 0).ljust(64, b'\0')
os.write(fuse, struct.pack('=IiQ', 16 + len(body), 0, unique) + body)
print('mounted', flush=True)
while True:
    question = os.read(fuse, 1 << 17)
    print(struct.unpack_from('=I', question, 4)[0], flush=True)
