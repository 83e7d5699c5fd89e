//go:build !linux

package waybillmysql_test

import "syscall"

// withParent does nothing here: a test that is killed leaves its children behind.
func withParent() *syscall.SysProcAttr { return nil }
