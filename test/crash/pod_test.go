// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/internal/test/nettest/leak"
	"github.com/patchbay-net/patchbay/internal/test/reftest"
	"github.com/patchbay-net/patchbay/spec"
)

// containerd passes CNI_ARGS in the order of a Go map, and with keys that later releases added.
// The result has what both CRI runtimes read: one eth0, in the pod, and its addresses by family,
// in the order of the ranges. containerd's runtimeConfig has the names of Go's fields.
func TestPodResult(t *testing.T) {
	before := podBaseline(t)
	p := newPod(t, "/run/netns", "result", 9601)
	args := []string{"IgnoreUnknown=1", "K8S_POD_NAMESPACE=default", "K8S_POD_NAME=result", "K8S_POD_INFRA_CONTAINER_ID=result", "K8S_POD_UID=7", "TOMORROW=x"}
	rnd := rand.New(rand.NewPCG(1, 1))
	for range draw.Number(t, "PATCHBAY_CRASH_ARGS", 5, 20) {
		rnd.Shuffle(len(args), func(i, j int) { args[i], args[j] = args[j], args[i] })
		p.args = strings.Join(args, ";")
		p.exec(t, spec.Add)
		result, err := spec.ParseResult(p.result, "1.0.0")
		if err != nil {
			t.Fatal(err)
		}
		checkPodResult(t, result, p)
		checkPodKernel(t, result, p)
		p.exec(t, spec.Check)
		p.exec(t, spec.Del)
	}
	p.end(t)
	leak.NoLeaks(t, before, stateDirs()...)
}

func checkPodResult(t *testing.T, result *spec.Result, p pod) {
	t.Helper()
	var inPod []int
	for i, link := range result.Interfaces {
		if link.Name == "eth0" {
			inPod = append(inPod, i)
		}
		if (link.Name == "eth0") != (link.Sandbox == p.ns) || link.Sandbox != "" && link.Mac == "" {
			t.Errorf("%s: interface %+v", p.args, link)
		}
	}
	if len(inPod) != 1 || len(result.IPs) != 2 {
		t.Fatalf("%s: %s", p.args, p.result)
	}
	for i, want := range []string{"198.18.91.0/24", "fd91::/64"} {
		ip := result.IPs[i]
		if !netip.MustParsePrefix(want).Contains(ip.Address.Addr()) || !ip.Gateway.IsValid() || ip.Interface == nil || *ip.Interface != inPod[0] {
			t.Errorf("%s: address %d is %+v", p.args, i, ip)
		}
	}
}

// checkPodKernel checks that the kernel has the limit and the port that the runtime sent.
func checkPodKernel(t *testing.T, result *spec.Result, p pod) {
	t.Helper()
	link, err := netlink.LinkByName(result.Interfaces[0].Name)
	if err != nil {
		t.Fatal(err)
	}
	queues, err := nl.Retry(func() ([]netlink.Qdisc, error) { return netlink.QdiscList(link) })
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(queues, func(q netlink.Qdisc) bool {
		limit, ok := q.(*netlink.Tbf)
		return ok && limit.Rate == 10_000_000
	}) {
		t.Errorf("no limit among %v", queues)
	}
	if now := state(t).Of("nft").String(); !strings.Contains(now, fmt.Sprintf("element inet patchbay ports4 06000000%04x0000 ", p.port)) {
		t.Errorf("no port %d in:\n%s", p.port, now)
	}
}

// secret is a text that a test puts into an annotation.
const secret = "annotation-with-a-secret"

// kubectl writes whole objects, up to 256 KiB, into an annotation, and runtimes pass annotations
// to plugins. No part of them gets into a file, a result, an error or a log.
func TestAnnotationsStay(t *testing.T) {
	annotations := fmt.Sprintf(`{"kubectl.kubernetes.io/last-applied-configuration":%q}`, strings.Repeat(secret+`"\`, 256<<10/len(secret)))
	before := podBaseline(t)
	p := newPod(t, "/run/netns", "annotated", 9701)
	p.exec(t, spec.Add)
	pads := func(text string) string { // some runtimes send the annotations to every plugin
		text = strings.ReplaceAll(text, `"capabilities":{`, `"capabilities":{"io.kubernetes.cri.pod-annotations":true,"io.kubernetes.cri-o.Annotations":true,`)
		text = strings.ReplaceAll(text, `{"type":"ptp",`, `{"type":"ptp","capabilities":{"io.kubernetes.cri.pod-annotations":true},`)
		return strings.Replace(text, `"runtimeConfig":{`, `"runtimeConfig":{"io.kubernetes.cri.pod-annotations":`+annotations+`,"io.kubernetes.cri-o.Annotations":`+annotations+`,`, 1)
	}
	for _, c := range []struct {
		name   string
		verb   spec.Verb
		change func(string) string
		fails  bool
	}{
		{name: "again", verb: spec.Add},
		{name: "check", verb: spec.Check, fails: true},
		{name: "limit", verb: spec.Add, change: replace(`"IngressRate":80000000`, `"IngressRate":-1`), fails: true},
		{name: "port", verb: spec.Add, change: replace(`"HostPort":`, `"HostPort":7`), fails: true},
		{name: "type", verb: spec.Add, change: replace(`"runtimeConfig":{`, `"runtimeConfig":{"mac":["x"],"portMappings":`+annotations+`,"x":{`), fails: true},
		{name: "cut", verb: spec.Add, change: func(s string) string { return s[:len(s)-9] }, fails: true},
		{name: "range", verb: spec.Add, change: replace("198.18.91.0/24", "198.18.91.0/33"), fails: true},
		{name: "version", verb: spec.Add, change: replace(`"cniVersion":"1.0.0"`, `"cniVersion":"9.0.0"`), fails: true},
		{name: "name", verb: spec.Add, change: replace(`"name":"pods"`, `"name":"/"`), fails: true},
		{name: "status", verb: spec.Status, change: replace(`"cniVersion":"1.0.0"`, `"cniVersion":"1.1.0"`)},
		{name: "cut del", verb: spec.Del, change: func(s string) string { return s[:len(s)-9] }, fails: true},
		{name: "del", verb: spec.Del},
	} {
		call := p.call(c.verb)
		text := pads(string(call.Config))
		if c.change != nil {
			text = c.change(text)
		}
		if c.verb == spec.Add && !c.fails {
			p.exec(t, spec.Del)
		}
		if call.Config = []byte(text); len(text) < 256<<10 {
			t.Fatalf("%s: %d bytes", c.name, len(text))
		}
		if c.verb == spec.Status {
			call.ContainerID, call.NetNS, call.IfName = "", "", ""
		}
		out, err := outputOf(t, call)
		if (err != nil) != c.fails {
			t.Errorf("%s: %v: %.300s", c.name, err, out)
		}
		if bytes.Contains(out, []byte("annotation")) {
			t.Errorf("%s: the output has annotations: %.300s", c.name, out)
		}
		noSecretIn(t, c.name, stateDirs()...)
	}
	p.end(t)
	leak.NoLeaks(t, before, stateDirs()...)
}

func replace(from, to string) func(string) string {
	return func(s string) string { return strings.Replace(s, from, to, 1) }
}

// outputOf runs a call in a process and returns all that it writes.
func outputOf(t *testing.T, c *spec.Call) ([]byte, error) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), c.Environ()...)
	cmd.Stdin = bytes.NewReader(c.Config)
	out, err := cmd.CombinedOutput()
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out, err
}

func noSecretIn(t *testing.T, when string, dirs ...string) {
	t.Helper()
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return nil //nolint:nilerr // a directory that is not there
			}
			data, err := os.ReadFile(path)
			if bytes.Contains(data, []byte(secret)) {
				t.Errorf("%s: %s has annotations", when, path)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// containerd and CRI-O execute STATUS every five seconds. CRI-O executes CHECK after each ADD.
// The quickest of some calls shows what the program itself costs. The test compares it with
// VERSION, the start of the program, because a busy or slow machine makes both slower alike.
func TestStatusIsCheap(t *testing.T) {
	program, err := reftest.Program("patchbay")
	if err != nil {
		t.Fatal(err)
	}
	p := newPod(t, "/run/netns", "cheap", 9801)
	p.exec(t, spec.Add)
	start := cpuOf(t, program, &spec.Call{Verb: spec.Version, Config: []byte(`{"cniVersion":"1.1.0"}`)})
	for verb, most := range map[spec.Verb]time.Duration{spec.Status: 3 * start, spec.Check: 10 * start} {
		c := p.call(verb)
		if verb == spec.Status {
			c.ContainerID, c.NetNS, c.IfName = "", "", ""
		}
		c.Config = bytes.Replace(c.Config, []byte(`"cniVersion":"1.0.0"`), []byte(`"cniVersion":"1.1.0"`), 1)
		if took := cpuOf(t, program, c); took > most {
			t.Errorf("%s takes %v of CPU, want at most %v: VERSION takes %v", verb, took, most, start)
		} else {
			t.Logf("%s takes %v of CPU, VERSION %v", verb, took, start)
		}
	}
	p.exec(t, spec.Del)
	p.end(t)
}

// cpuOf returns the least CPU time of some calls.
func cpuOf(t *testing.T, program string, c *spec.Call) (least time.Duration) {
	t.Helper()
	for range draw.Number(t, "PATCHBAY_CHEAP_CALLS", 15, 50) {
		cmd := exec.Command(program)
		cmd.Args[0] = "patchbay"
		cmd.Env = c.Environ()
		cmd.Stdin = bytes.NewReader(c.Config)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", c.Verb, err, out)
		}
		took := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
		least = min(cmp.Or(least, took), took)
	}
	return least
}

// A pod with hostUsers: false has a network namespace that belongs to its own user
// namespace.
func TestPodInUserNamespace(t *testing.T) {
	before := podBaseline(t)
	p := pod{name: "users", network: "pods", port: 9901, ns: "/run/netns/users", args: "K8S_POD_NAME=users;K8S_POD_NAMESPACE=default"}
	ofOtherUsers(t, p.ns)
	for _, verb := range []spec.Verb{spec.Add, spec.Check, spec.Del} {
		p.exec(t, verb)
	}
	leak.NoLeaks(t, before, stateDirs()...)
	q := request{"users", p.ns, 9902} // these need tuning's sysctls, a bridge and an ifb
	result := mustRun(t, q, spec.Add, "")
	mustRun(t, q, spec.Check, `,"prevResult":`+string(result))
	mustRun(t, q, spec.Del, "")
	if err := unix.Unmount(p.ns, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
}

// ofOtherUsers makes a network namespace that belongs to a new user namespace, and binds it.
func ofOtherUsers(t *testing.T, at string) {
	t.Helper()
	cmd := exec.Command("sleep", "600")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill() //nolint:errcheck // it may have ended
		cmd.Wait()         //nolint:errcheck // it was killed
	})
	if err := os.WriteFile(at, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(at) })
	if err := unix.Mount(fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid), at, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
}
