package waybillmysql_test

import "syscall"

// withParent has the kernel kill a child when the thread that started it ends.
func withParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
