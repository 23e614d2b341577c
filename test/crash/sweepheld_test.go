// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"bytes"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/internal/test/nettest/leak"
	"github.com/patchbay-net/patchbay/spec"
)

// Another process holds all records, as repair does. The calls for a healthy pod beside a dead one do not wait for
// it, and a later call sweeps the dead. One call may be slow, because the machine is busy.
func TestSweepBesideRepair(t *testing.T) {
	before := podBaseline(t)
	dead, another := newPod(t, "/run/netns", "dead", 9300), newPod(t, "/run/netns", "another", 9399)
	dead.exec(t, spec.Add)
	dead.end(t)
	age(t)
	repaired, err := record.New(paths.Default().Run).Repairing(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	slow := 0
	for range 4 { // a sweep looks at some attachments only, so not every call meets the dead
		for _, verb := range []spec.Verb{spec.Add, spec.Del} {
			began := time.Now()
			out, err := outputOf(t, another.call(verb))
			if err != nil {
				t.Fatalf("%s: %v: %s", verb, err, out)
			}
			if took := time.Since(began); took > time.Second || bytes.Contains(out, []byte("did not end within")) {
				slow++
				t.Logf("%s took %v: %s", verb, took, out)
			}
		}
	}
	if slow > 1 {
		t.Errorf("%d of 8 calls waited for the process that holds the records", slow)
	}
	if !exists(recordOf(dead)) {
		t.Error("the dead is swept while another process holds the records")
	}
	repaired()
	sweepUntil(t, &another, func() bool { return !exists(recordOf(dead)) })
	another.end(t)
	leak.NoLeaks(t, before, stateDirs()...)
}
