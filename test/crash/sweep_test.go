// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/internal/test/nettest/leak"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/spec"
)

// podChain is what `patchbay install --kubernetes` writes.
const podChain = `{"cniVersion":"1.0.0","name":%q,"type":"patchbay","plugins":[
	{"type":"ptp","ipMasq":true,"ipMasqOutside":["198.18.0.0/15"],
	 "ipam":{"type":"host-local","ranges":[[{"subnet":"198.18.91.0/24"}],[{"subnet":"fd91::/64"}]],"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}},
	{"type":"portmap","snat":true,"capabilities":{"portMappings":true}},
	{"type":"bandwidth","capabilities":{"bandwidth":true}}],
	"runtimeConfig":{"portMappings":[{"HostPort":%d,"ContainerPort":80,"Protocol":"tcp"}],"bandwidth":{"IngressRate":80000000,"IngressBurst":8000000}}}`

// pod is a pod's sandbox as a Kubernetes runtime passes it.
type pod struct {
	name, ns, network, args string
	port                    int
	result                  []byte // of the last ADD
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// newPod makes the namespace of a pod in a directory. The test ends the namespace.
func newPod(t *testing.T, dir, name string, port int) pod {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := netns.Create(path); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { netns.Delete(path) }) //nolint:errcheck // it may be gone
	return pod{name: name, ns: path, network: "pods", port: port, args: "K8S_POD_NAME=" + name + ";IgnoreUnknown=1;K8S_POD_NAMESPACE=default"}
}

func (p *pod) call(verb spec.Verb) *spec.Call {
	conf := fmt.Appendf(nil, podChain, p.network, p.port)
	if verb == spec.Check {
		conf = fmt.Appendf(bytes.TrimSuffix(conf, []byte("}")), `,"prevResult":%s}`, p.result)
	}
	return &spec.Call{
		Verb: verb, ContainerID: p.name, NetNS: p.ns, IfName: "eth0", Args: p.args, Path: []string{"/nonexistent"}, Config: conf,
	}
}

// exec runs a verb in a process. At its end the process sweeps.
func (p *pod) exec(t *testing.T, verb spec.Verb, env ...string) {
	t.Helper()
	c := p.call(verb)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(append(os.Environ(), c.Environ()...), env...)
	cmd.Stdin = bytes.NewReader(c.Config)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v: %s%s", verb, p.name, err, out, &stderr)
	}
	if stderr.Len() > 0 {
		t.Logf("%s %s: %s", verb, p.name, &stderr)
	}
	if verb == spec.Add {
		p.result = out
	}
}

func (p *pod) end(t *testing.T) {
	t.Helper()
	if err := netns.Delete(p.ns); err != nil {
		t.Fatal(err)
	}
}

// age makes all records older than the grace period.
func age(t *testing.T) {
	t.Helper()
	old := time.Now().Add(-time.Hour)
	for _, file := range records(t, "*") {
		if err := os.Chtimes(file, old, old); err != nil {
			t.Fatal(err)
		}
	}
}

func records(t *testing.T, network string) []string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(paths.Default().Run, "attachments", network, "*"))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// podBaseline is the state that pods leave by design.
func podBaseline(t *testing.T) leak.State {
	t.Helper()
	p := newPod(t, "/run/netns", "first", 9999)
	p.exec(t, spec.Add)
	p.exec(t, spec.Del)
	p.end(t)
	return state(t)
}

// sweepTime limits how long a test makes calls until they have swept. On a very busy machine, a
// sweep does not finish in its time.
const sweepTime = 2 * time.Minute

// sweepUntil attaches and detaches a pod until nothing is left of the other pods, which the test
// calls dead.
func sweepUntil(t *testing.T, p *pod, swept func() bool) (calls int) {
	t.Helper()
	for end := time.Now().Add(sweepTime); ; calls += 2 {
		p.exec(t, spec.Add)
		p.exec(t, spec.Del)
		if swept() {
			return calls
		}
		if time.Now().After(end) {
			t.Fatalf("after %d calls the dead are not swept: %v", calls, records(t, "*"))
		}
	}
}

// sweeps is how often a pod is attached and detached to see what a sweep leaves. Each call looks at
// more attachments than the test has.
func sweeps(t *testing.T) int { return draw.Number(t, "PATCHBAY_SWEEPS", 1, 3) }

// recordOf returns the path of one record of the pod.
func recordOf(p pod) string {
	return filepath.Join(paths.Default().Run, "attachments", p.network, string(owner.Of(p.network, p.name, "eth0"))+".ptp")
}

// The DEL of these pods never comes. The ADDs and DELs of other pods remove what these pods had.
func TestSweepRemovesTheDead(t *testing.T) {
	before := podBaseline(t)
	for n := range draw.Number(t, "PATCHBAY_SWEEP_DEAD", 5, 12) {
		p := newPod(t, "/run/netns", fmt.Sprintf("dead%d", n), 9000+n)
		p.exec(t, spec.Add)
		p.end(t)
	}
	age(t)
	others := make([]pod, 3)
	for n := range others { // the records of living pods are between those of the dead
		others[n] = newPod(t, "/run/netns", fmt.Sprintf("living%d", n), 9100+n)
		others[n].exec(t, spec.Add)
	}
	another := newPod(t, "/run/netns", "another", 9110)
	sweepUntil(t, &another, func() bool { return len(records(t, "pods")) == 3*len(others) })
	another.end(t)
	for _, p := range others {
		p.exec(t, spec.Check)
		p.exec(t, spec.Del)
		p.end(t)
	}
	leak.NoLeaks(t, before, stateDirs()...)
}

// A node has hundreds of pods. A call looks at four records, and each record has its turn.
func TestSweepTakesTurns(t *testing.T) {
	before := podBaseline(t)
	list := make([]pod, draw.Number(t, "PATCHBAY_SWEEP_LIVING", 9, 20))
	for n := range list {
		list[n] = newPod(t, "/run/netns", fmt.Sprintf("turn%d", n), 9200+n)
		list[n].exec(t, spec.Add)
	}
	age(t)
	list[7].end(t)
	another := newPod(t, "/run/netns", "another", 9299)
	calls := sweepUntil(t, &another, func() bool { return !exists(recordOf(list[7])) })
	t.Logf("swept after %d calls", calls)
	another.end(t)
	for n, p := range list {
		if n != 7 {
			p.exec(t, spec.Check)
			p.exec(t, spec.Del)
		}
	}
	leak.NoLeaks(t, before, stateDirs()...)
}

// A sweep removes no attachment that may be alive because it is young, in use, or another
// runtime's.
func TestSweepLeaves(t *testing.T) {
	for _, dir := range []string{"/run/netns", "/run/other"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	before := podBaseline(t)
	for name, c := range map[string]struct {
		dir     string
		change  func(*pod)
		after   func(*testing.T, pod) (undo func())
		env     string
		removed bool
	}{
		"dead":      {removed: true},
		"off":       {env: "PATCHBAY_SWEEP=off"},
		"directory": {dir: "/run/other"},
		"no pod":    {change: func(p *pod) { p.args = "IgnoreUnknown=1" }},
		"network":   {change: func(p *pod) { p.network = "others" }},
		"young":     {after: func(t *testing.T, _ pod) func() { touch(t, time.Now()); return func() {} }},
		"future":    {after: func(t *testing.T, _ pod) func() { touch(t, time.Now().Add(time.Hour)); return func() {} }},
		"in use":    {after: holdRecord},
		"bound":     {after: bindElsewhere},
		"torn":      {after: func(t *testing.T, _ pod) func() { return rewrite(t, `"schema":1`, `"schema":[]`) }},
		"newer":     {after: func(t *testing.T, _ pod) func() { return rewrite(t, `"schema":1`, `"schema":99`) }},
	} {
		t.Run(name, func(t *testing.T) {
			dir := c.dir
			if dir == "" {
				dir = "/run/netns"
			}
			dead := newPod(t, dir, "leave", 9301)
			if c.change != nil {
				c.change(&dead)
			}
			dead.exec(t, spec.Add)
			age(t)
			undo := func() {}
			if c.after != nil {
				undo = c.after(t, dead)
			}
			dead.end(t)
			had := len(records(t, dead.network))
			other := newPod(t, "/run/netns", "other", 9302)
			if c.removed {
				sweepUntil(t, &other, func() bool { return len(records(t, "pods")) == 0 })
			}
			for range sweeps(t) {
				other.exec(t, spec.Add, c.env)
				other.exec(t, spec.Del, c.env)
			}
			if left := len(records(t, dead.network)); (left == 0) != c.removed || left != had && !c.removed {
				t.Errorf("of %d records %d are left: %v", had, left, records(t, dead.network))
			}
			undo()
			dead.ns = ""
			dead.exec(t, spec.Del)
			other.end(t)
			leak.NoLeaks(t, before, append(stateDirs(), "/run/other")...)
		})
	}
}

func touch(t *testing.T, when time.Time) {
	t.Helper()
	for _, file := range records(t, "*") {
		if err := os.Chtimes(file, when, when); err != nil {
			t.Fatal(err)
		}
	}
}

// holdRecord starts a process that works on a record of the pod.
func holdRecord(t *testing.T, _ pod) (undo func()) {
	t.Helper()
	f, err := os.Open(records(t, "pods")[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	return func() { f.Close() } //nolint:errcheck // read only
}

// bindElsewhere keeps the namespace alive with a mount. The mount has no name in the namespace's
// directory.
func bindElsewhere(t *testing.T, p pod) (undo func()) {
	t.Helper()
	at := filepath.Join(t.TempDir(), "bound")
	if err := os.WriteFile(at, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(p.ns, at, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
			t.Fatal(err)
		}
	}
}

// rewrite changes a text in one record of the pod, until undo.
func rewrite(t *testing.T, from, to string) (undo func()) {
	t.Helper()
	file := records(t, "pods")[0]
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	changed := bytes.Replace(data, []byte(from), []byte(to), 1)
	if bytes.Equal(changed, data) {
		t.Fatalf("no %s in %s", from, data)
	}
	put := func(data []byte) {
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put(changed)
	age(t)
	return func() { put(data) }
}

// A state directory outlives a reboot, so it has records of the boot before. A pod of this boot
// has a namespace of the same name.
func TestSweepAfterReboot(t *testing.T) {
	before := podBaseline(t)
	old := newPod(t, "/run/netns", "rebooted", 9401)
	old.exec(t, spec.Add)
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range records(t, "pods") {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		data = bytes.ReplaceAll(data, bytes.TrimSpace(id), []byte("00000000-0000-4000-8000-000000000000"))
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	age(t)
	old.end(t)
	next := newPod(t, "/run/netns", "rebooted", 9402) // another namespace at the same path
	next.name = "rebooted-again"
	next.exec(t, spec.Add)
	another := newPod(t, "/run/netns", "another", 9403)
	sweepUntil(t, &another, func() bool { return !exists(recordOf(old)) })
	another.end(t)
	next.exec(t, spec.Check)
	if got := len(records(t, "pods")); got != 3 {
		t.Errorf("%d records, want the 3 of the new pod: %v", got, records(t, "pods"))
	}
	next.exec(t, spec.Del)
	next.end(t)
	leak.NoLeaks(t, before, stateDirs()...)
}

// A sweep is killed at random moments. Later sweeps remove what it leaves.
func TestSweepKilled(t *testing.T) {
	before := podBaseline(t)
	kills := nettest.NewKills(t, "an ADD that sweeps")
	other := newPod(t, "/run/netns", "kills", 9501)
	for n := 0; kills.More(tries(t) / 2); n++ {
		for i := range 2 {
			dead := newPod(t, "/run/netns", fmt.Sprintf("killed%d-%d", n, i), 9502+i)
			dead.exec(t, spec.Add)
			dead.end(t)
		}
		age(t)
		kills.Try(func(after time.Duration) bool { return died(t, other.call(spec.Add), after) })
		other.exec(t, spec.Del)
	}
	age(t)
	sweepUntil(t, &other, func() bool { return len(records(t, "pods")) == 0 }) // the claims go too
	other.end(t)
	leak.NoLeaks(t, before, stateDirs()...)
}
