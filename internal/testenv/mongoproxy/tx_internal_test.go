package mongoproxy

// A command that waits for another transaction conflicts with it. One that waits for a larger table does not.

import "testing"

func TestWaitsForAnother(t *testing.T) {
	t.Parallel()
	for notice, want := range map[string]bool{
		"process 7 still waiting for ShareLock on transaction 740 after 1.031 ms":                                              true,
		"process 7 still waiting for AccessExclusiveLock on tuple (0,1) of relation 16384 of database 5 after 1.002 ms":        true,
		"process 7 still waiting for ShareLock on speculative token 1 of transaction 740 after 1.02 ms":                        true,
		"process 7 still waiting for ExclusiveLock on extension of relation 16384 of database 5 after 1.2 ms":                  false,
		"process 7 acquired ShareLock on transaction 740 after 2.1 ms":                                                         false,
		"process 7 avoided deadlock for ExclusiveLock on extension of relation 16384 of database 5 by rearranging queue order": false,
	} {
		if got := waitsForAnother(notice); got != want {
			t.Errorf("%s: %t", notice, got)
		}
	}
}
