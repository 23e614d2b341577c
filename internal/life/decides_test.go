// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package life

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// The process with the path ends during the check. It then holds nothing.
func TestDecidesAtNothing(t *testing.T) {
	was := &Mark{Cookie: 1, Boot: "now"}
	if same, known := was.decidesAt("/proc/0/ns/net"); same || !known {
		t.Errorf("a process that ended: %v, %v", same, known)
	}
}

// The caller of an ADD has ended only if procfs proves it.
func TestCallerEnded(t *testing.T) {
	_, start, err := process("/proc", os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	here := placeOf("/proc/self/ns/net")
	lives := Caller{PID: os.Getpid(), Start: start, PIDs: here}
	gone := Caller{PID: 1 << 30, Start: start, PIDs: here}
	torn := t.TempDir() // has this process, and cannot read the other
	for pid, text := range map[int]string{os.Getpid(): "1 (a) S 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 7", gone.PID: "no stat"} {
		dir := filepath.Join(torn, strconv.Itoa(pid))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "stat"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		caller Caller
		proc   string
		want   bool
	}{
		"lives":                 {caller: lives, proc: "/proc"},
		"gone":                  {caller: gone, proc: "/proc", want: true},
		"another with its id":   {caller: Caller{PID: os.Getpid(), Start: start + 1, PIDs: here}, proc: "/proc", want: true},
		"no procfs":             {caller: gone, proc: t.TempDir()},
		"unreadable":            {caller: gone, proc: torn},
		"another PID namespace": {caller: Caller{PID: gone.PID, Start: start, PIDs: &Place{}}, proc: "/proc"},
		"PID namespace unknown": {caller: Caller{PID: gone.PID, Start: start}, proc: "/proc"},
	} {
		if got := c.caller.ended(c.proc); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
