package storetest

import "fmt"

// recorder is the test to which rapid reports. It gives up by panicking with itself.
type recorder struct {
	failed, found bool
	lines         []string
}

func (*recorder) Helper()                   {}
func (*recorder) Name() string              { return "model" }
func (r *recorder) Failed() bool            { return r.failed }
func (r *recorder) Fail()                   { r.failed = true }
func (r *recorder) Skip(...any)             {}
func (r *recorder) Skipf(string, ...any)    {}
func (r *recorder) SkipNow()                {}
func (r *recorder) Log(a ...any)            { r.lines = append(r.lines, fmt.Sprint(a...)) }
func (r *recorder) Logf(f string, a ...any) { r.lines = append(r.lines, fmt.Sprintf(f, a...)) }

func (r *recorder) Error(a ...any) {
	r.Log(a...)
	r.Fail()
}

func (r *recorder) Errorf(f string, a ...any) {
	r.Logf(f, a...)
	r.Fail()
}

func (r *recorder) FailNow() {
	r.Fail()
	panic(r)
}

func (r *recorder) Fatal(a ...any) {
	r.Log(a...)
	r.FailNow()
}

func (r *recorder) Fatalf(f string, a ...any) {
	r.Logf(f, a...)
	r.FailNow()
}
