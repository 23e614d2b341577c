// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/internal/test/nettest/fault"
	"github.com/patchbay-net/patchbay/internal/test/nettest/leak"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/all"
	"github.com/patchbay-net/patchbay/spec"
)

// TestMain makes the test binary the plugin too. So there is a process to kill.
func TestMain(m *testing.M) {
	if os.Getenv(actsEnv) != "" {
		os.Exit(actAsContainerd())
	}
	fault.Ask()
	if os.Getenv("CNI_COMMAND") != "" {
		os.Exit(plugin.MainOf(all.Find("patchbay"), all.Plugins()))
	}
	nettest.Main(m)
}

// usualChain is the usual chain of a node, with every other plugin of this program that
// changes one attachment.
const usualChain = `{"cniVersion":"1.1.0","name":"crash","type":"patchbay","plugins":[
	{"type":"bridge","bridge":"crash0","isGateway":true,"ipMasq":true,"hairpinMode":true,
	 "ipam":{"type":"host-local","ranges":[[{"subnet":"10.77.0.0/16"}],[{"subnet":"fd77::/64"}]],
	         "routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}},
	{"type":"portmap","capabilities":{"portMappings":true}},
	{"type":"firewall","ingressPolicy":"same-bridge"},
	{"type":"bandwidth","ingressRate":80000000,"ingressBurst":8000000,"egressRate":80000000,"egressBurst":8000000},
	{"type":"tuning","mtu":1400,"sysctl":{"net.ipv4.conf.IFNAME.arp_notify":"1"}}]%s}`

// request is one container's attachment.
type request struct {
	id   string
	ns   string
	port int
}

func (q request) call(verb spec.Verb, extra string) *spec.Call {
	if verb == spec.Add || verb == spec.Check {
		extra += fmt.Sprintf(`,"runtimeConfig":{"portMappings":[{"hostPort":%d,"containerPort":80,"protocol":"tcp"},{"hostPort":%d,"containerPort":53,"protocol":"udp"}]}`, q.port, q.port)
	}
	c := &spec.Call{Verb: verb, Path: []string{"/nonexistent"}, Config: []byte(fmt.Sprintf(usualChain, extra))}
	if c.PerContainer() {
		c.ContainerID, c.NetNS, c.IfName = q.id, q.ns, "eth0"
	}
	return c
}

// run calls the chain in process.
func run(q request, verb spec.Verb, extra string, fault func(string) error) ([]byte, error) {
	return invoked(q.call(verb, extra), fault)
}

func invoked(c *spec.Call, fault func(string) error) ([]byte, error) {
	b := plugin.Builtin{NewSession: func() *plugin.Session {
		s := plugin.NewSession(all.Plugins())
		s.Fault = fault
		return s
	}}
	return b.Invoke(context.Background(), "patchbay", c)
}

func mustRun(t *testing.T, q request, verb spec.Verb, extra string) []byte {
	t.Helper()
	out, err := run(q, verb, extra, nil)
	if err != nil {
		t.Fatalf("%s %s: %v", verb, q.id, err)
	}
	return out
}

const keepNobody = `,"cni.dev/valid-attachments":[]`

// state counts all objects of the node. The bridge and its gateway address stay by design, so
// they must exist before the first count.
func state(t *testing.T) leak.State {
	t.Helper()
	return leak.Must(t, stateDirs()...)
}

func stateDirs() []string {
	p := paths.Default()
	return []string{p.Run, p.CNI, p.RunCNI}
}

// baseline attaches and detaches one container. So the objects that a network keeps by design
// exist and are counted.
func baseline(t *testing.T) leak.State {
	t.Helper()
	q := request{"baseline", nettest.NewNS(t, "crash-baseline"), 10000}
	mustRun(t, q, spec.Add, "")
	mustRun(t, q, spec.Del, "")
	return state(t)
}

func nothingBeyond(t *testing.T, before leak.State, when string) {
	t.Helper()
	if left := state(t).Beyond(before).Without(leak.Standing); len(left) > 0 {
		t.Fatalf("%s left:\n%s", when, left)
	}
}

// A fault happens at each step of the whole chain. The ADD fails and leaves nothing, not even
// work for DEL.
func TestFaultAtEveryStep(t *testing.T) {
	before := baseline(t)
	q := request{"fault", nettest.NewNS(t, "crash-fault"), 10001}
	injected := errors.New("injected")
	for n := 1; ; n++ {
		step, where := 0, ""
		result, err := run(q, spec.Add, "", func(name string) error {
			if step++; step == n {
				where = name
				return injected
			}
			return nil
		})
		if err == nil {
			if n < 20 {
				t.Errorf("only %d steps in the whole chain: faults are not injected everywhere", n-1)
			}
			mustRun(t, q, spec.Check, `,"prevResult":`+string(result))
			break
		}
		if !errors.Is(err, injected) {
			t.Fatalf("step %d (%s): %v", n, where, err)
		}
		nothingBeyond(t, before, fmt.Sprintf("a fault at step %d (%s)", n, where))
	}
	mustRun(t, q, spec.Del, "")
	nothingBeyond(t, before, "DEL")
}

// A namespace is deleted before DEL. DEL knows only the three names.
func TestNamespaceDeletedFirst(t *testing.T) {
	before := baseline(t)
	for _, ns := range []string{"", "/run/netns/crash-gone"} {
		q := request{"gone", nettest.NewNS(t, "crash-gone"), 10002}
		mustRun(t, q, spec.Add, "")
		if err := netns.Delete(q.ns); err != nil {
			t.Fatal(err)
		}
		q.ns = ns
		mustRun(t, q, spec.Del, "")
		mustRun(t, q, spec.Del, "")
		nothingBeyond(t, before, "DEL without namespace")
	}
}

// A reboot empties the kernel and /run, but not /var/lib.
func TestReboot(t *testing.T) {
	before := baseline(t)
	q := request{"rebooted", nettest.NewNS(t, "crash-rebooted"), 10003}
	mustRun(t, q, spec.Add, "")
	if err := netns.Delete(q.ns); err != nil {
		t.Fatal(err)
	}
	forget(t)
	mustRun(t, request{}, spec.GC, keepNobody)
	if left := state(t).Of("file").Beyond(before); len(left) > 0 {
		t.Errorf("GC after a reboot left:\n%s", left)
	}
}

// forget empties the kernel and /run as a reboot does.
func forget(t *testing.T) {
	t.Helper()
	links, err := nl.Retry(netlink.LinkList) // links of a deleted namespace go meanwhile
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		if l.Attrs().Name != "lo" {
			_ = netlink.LinkDel(l) // the peer may already be gone with its other end
		}
	}
	for _, dir := range []string{paths.Default().Run, paths.Default().RunCNI} {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
}

// tries is how often a process is killed. `make nightly` sets PATCHBAY_CRASH_TRIES to some thousands.
func tries(t *testing.T) int { return draw.Number(t, "PATCHBAY_CRASH_TRIES", 18, 60) }

// Processes are killed at random points of ADD and DEL. Then a DEL follows, or only a GC.
func TestKill(t *testing.T) {
	before := baseline(t)
	q := request{"", nettest.NewNS(t, "crash-kill"), 10004}
	adds, dels := nettest.NewKills(t, "ADD"), nettest.NewKills(t, "DEL")
	for n := 0; adds.More(tries(t)) || dels.More(tries(t)/3); n++ {
		q.id = fmt.Sprintf("kill%d", n)
		try(t, adds, q.call(spec.Add, ""))
		switch n % 3 {
		case 0: // the runtime repeats the DEL, as it must
			mustRun(t, q, spec.Del, "")
		case 1: // the DEL is killed too, and repeated
			try(t, dels, q.call(spec.Del, ""))
			mustRun(t, q, spec.Del, "")
		case 2: // the runtime forgot the container, so GC removes it
			mustRun(t, q, spec.GC, keepNobody)
		}
		if n%20 == 0 {
			nothingBeyond(t, before, fmt.Sprintf("try %d", n))
		}
	}
	mustRun(t, q, spec.GC, keepNobody)
	nothingBeyond(t, before, "the last GC")
}

// try runs a call in a process that is killed at a random moment.
func try(t *testing.T, kills *nettest.Kills, c *spec.Call) {
	t.Helper()
	kills.Try(func(after time.Duration) bool { return died(t, c, after) })
}

// died runs a call in a process and kills the process after some time. It reports whether the
// process was still running.
func died(t *testing.T, c *spec.Call, after time.Duration) bool {
	t.Helper()
	cmd := process(c)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(after, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	err := cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == -1 {
		return true
	}
	if err != nil {
		t.Fatalf("%s %s: %v: %s", c.Verb, c.ContainerID, err, out.Bytes())
	}
	return false
}

// Every verb works with state files that are empty, cut short or another program's.
func TestTornFiles(t *testing.T) {
	before := baseline(t)
	for _, content := range []string{"", "{", `{"schema":99,"owner":"x"}`} {
		q := request{"torn", nettest.NewNS(t, "crash-torn"), 10006}
		mustRun(t, q, spec.Add, "")
		damaged := damage(t, content)
		if damaged < 3 {
			t.Errorf("only %d records to damage", damaged)
		}
		mustRun(t, q, spec.Del, "")
		mustRun(t, q, spec.GC, keepNobody)
		if left := state(t).Beyond(before).Without(leak.Standing).Of("link"); len(left) > 0 {
			t.Errorf("DEL with records %q left:\n%s", content, left)
		}
		if err := netns.Delete(q.ns); err != nil {
			t.Fatal(err)
		}
	}
}

func damage(t *testing.T, content string) (n int) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(paths.Default().Run, "attachments", "*", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if strings.HasSuffix(f, "~") {
			continue
		}
		if err := os.WriteFile(f, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		n++
	}
	return n
}

// process is a new process that makes a call.
func process(c *spec.Call) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), c.Environ()...)
	cmd.Stdin = bytes.NewReader(c.Config)
	return cmd
}

// inProcess makes a call as a new process.
func inProcess(c *spec.Call) error {
	if out, err := process(c).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", c.Verb, c.ContainerID, err, out)
	}
	return nil
}
