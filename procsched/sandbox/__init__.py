"""Running code that nobody trusts: the policy, what can keep its promises here, and the wire.

`policy` and `promises` decide, `values` and `frames` read what an untrusted process wrote, `paths`, `facts` and `trial`
ask the system, `syscalls` and `filters` make the seccomp filter, `inside` and `kernel` run in the sandboxed process.
"""
