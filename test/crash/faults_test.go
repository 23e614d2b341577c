// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/internal/test/nettest/fault"
	"github.com/patchbay-net/patchbay/internal/test/nettest/leak"
	"github.com/patchbay-net/patchbay/spec"
)

// A change of a DEL or GC fails, each time another one. A failed removal is repeated, and then nothing of the
// attachment is left. After a removal that succeeded, at most a GC has work. Another attachment of the network
// keeps all that it has, and no address is free to which something still leads.
func TestFaultInRemoval(t *testing.T) {
	for _, verb := range []spec.Verb{spec.Del, spec.GC} {
		t.Run(string(verb), func(t *testing.T) { faultIn(t, verb) })
	}
}

func faultIn(t *testing.T, verb spec.Verb) {
	other := request{"other", nettest.NewNS(t, "crash-other"), 10020}
	result := string(mustRun(t, other, spec.Add, ""))
	t.Cleanup(func() { mustRun(t, other, spec.Del, "") })
	r := &removal{t: t, verb: verb, other: other, q: request{"removed", nettest.NewNS(t, "crash-removed"), 10021}}
	r.once(0) // what stays by design
	r.before = state(t)
	all := r.once(0).Calls
	if all < 20 {
		t.Fatalf("%s makes only %d system calls that can fail", verb, all)
	}
	tried := 0
	for at := range faultsOf(t, all) {
		tried++
		failing := r.once(at)
		mustRun(t, other, spec.Check, `,"prevResult":`+result)
		nothingBeyond(t, r.before, fmt.Sprintf("%s with %s", verb, failing))
	}
	t.Logf("%d of %d system calls of %s failed", tried, all, verb)
}

// faultsOf draws which system call of 1 to all fails in each try.
func faultsOf(t *testing.T, all int) map[int]bool {
	t.Helper()
	n := draw.Number(t, "PATCHBAY_CRASH_FAULTS", 24, 60)
	seed, _ := draw.Seed(t)
	t.Logf("%s=%d draws the same again", draw.SeedEnv, seed)
	list := make(map[int]bool)
	for _, at := range rand.New(rand.NewPCG(seed, 0)).Perm(all)[:min(n, all)] {
		list[at+1] = true
	}
	return list
}

// removal is a DEL or GC of one attachment, beside another one that stays.
type removal struct {
	t        *testing.T
	verb     spec.Verb
	q, other request
	before   leak.State
}

func (r *removal) call() *spec.Call {
	if r.verb == spec.Del {
		return r.q.call(spec.Del, "")
	}
	return request{}.call(spec.GC, r.valid())
}

// valid is a GC's list that has only the other attachment.
func (r *removal) valid() string {
	return fmt.Sprintf(`,"cni.dev/valid-attachments":[{"containerID":%q,"ifname":"eth0"}]`, r.other.id)
}

// addressIsLast checks that nothing leads to the address after it was released.
func (r *removal) addressIsLast(failing *fault.Injector) {
	r.t.Helper()
	files, err := filepath.Glob(filepath.Join(paths.Default().CNI, "networks", "crash", "[0-9f]*"))
	if err != nil || r.before == nil {
		return
	}
	for _, f := range files {
		if text, _ := os.ReadFile(f); strings.HasPrefix(string(text), r.q.id+"\r\n") {
			return // it is reserved
		}
	}
	left := state(r.t).Beyond(r.before).Without(leak.Standing)
	if left = left.Without(func(line string) bool { return strings.HasPrefix(line, "file ") }); len(left) > 0 {
		r.t.Errorf("the address is free after %s, but these objects exist:\n%s", failing, left)
	}
}

// once attaches and removes, with a fault in one system call of the removal; 0 is none. It repeats the removal
// if it failed.
func (r *removal) once(at int) *fault.Injector {
	r.t.Helper()
	mustRun(r.t, r.q, spec.Add, "")
	failing := &fault.Injector{At: at}
	_, err := failing.Run(process(r.call()))
	if at == 0 && err != nil {
		r.t.Fatal(err)
	}
	r.addressIsLast(failing)
	if err == nil {
		mustRun(r.t, r.q, spec.GC, r.valid())
		return failing
	}
	if err := inProcess(r.call()); err != nil {
		r.t.Errorf("%s after one with %s: %v", r.verb, failing, err)
	}
	return failing
}
