// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/mesh"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/internal/test/reftest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

// uplink makes the link with node n1's addresses. The other nodes' addresses are on its subnet.
func uplink(t *testing.T) {
	t.Helper()
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "up0"}, PeerName: "up1"}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"up0", "up1"} {
		link, err := netlink.LinkByName(name)
		if err == nil {
			err = netlink.LinkSetUp(link)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	link, err := netlink.LinkByName("up0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { netlink.LinkDel(link) }) //nolint:errcheck // the namespace ends
	for _, text := range []string{"192.0.2.1/24", "2001:db8::1/64"} {
		p := netip.MustParsePrefix(text)
		mask := net.CIDRMask(p.Bits(), p.Addr().BitLen())
		if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: mask}, Flags: unix.IFA_F_NODAD}); err != nil {
			t.Fatal(err)
		}
	}
}

// process is a running `patchbayd node`.
type process struct {
	*testing.T
	cmd  *exec.Cmd
	dir  string
	args []string
}

func newProcess(t *testing.T, api *apiServer) *process {
	t.Helper()
	p := &process{T: t, dir: t.TempDir()}
	path := reftest.Daemon(t)
	config := filepath.Join(p.dir, "kubeconfig")
	text, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": "x",
		"clusters": []any{map[string]any{"name": "x", "cluster": map[string]any{"server": api.url}}},
		"contexts": []any{map[string]any{"name": "x", "context": map[string]any{"cluster": "x", "user": "x"}}},
		"users":    []any{map[string]any{"name": "x", "user": map[string]any{}}},
	})
	if err == nil {
		err = os.WriteFile(config, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	p.args = []string{
		path, "node", "--node-name", "n1", "--kubeconfig", config, "--cni-bin-dir=", "--cni-conf-dir", p.dir + "/net.d",
		"--cluster-cidr", "10.244.0.0/16", "--cluster-cidr", "fd00:244::/56",
	}
	return p
}

// start runs the program until it is ready, and returns how long that took.
func (p *process) start() time.Duration {
	p.Helper()
	p.cmd = exec.Command(p.args[0], p.args[1:]...)
	var log bytes.Buffer
	p.cmd.Stderr = &log
	began := time.Now()
	if err := p.cmd.Start(); err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() { p.stop(unix.SIGKILL) })
	for end := began.Add(patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if resp, err := http.Get("http://127.0.0.1:9472/readyz"); err == nil {
			resp.Body.Close() //nolint:errcheck // a test
			if resp.StatusCode == http.StatusOK {
				return time.Since(began)
			}
		}
	}
	p.stop(unix.SIGKILL)
	p.Fatalf("not ready:\n%s", &log)
	return 0
}

func (p *process) stop(s unix.Signal) {
	if p.cmd != nil {
		p.cmd.Process.Signal(s) //nolint:errcheck // it may have ended
		p.cmd.Wait()            //nolint:errcheck // it was killed
	}
	p.cmd = nil
}

// clean removes what the agent made.
func (p *process) clean() {
	p.Helper()
	if out, err := exec.Command(p.args[0], "node", "clean", "--cni-conf-dir", p.dir+"/net.d").CombinedOutput(); err != nil {
		p.Errorf("clean: %v: %s", err, out)
	}
}

// memory returns a value of /proc/PID/status, in kB.
func (p *process) memory(name string) int {
	p.Helper()
	n, err := memoryOf(p.cmd.Process.Pid, name)
	if err != nil {
		p.Fatal(err)
	}
	return n
}

// memoryOf returns a value in kB of proc_pid_status(5).
func memoryOf(pid int, name string) (int, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	_, value, _ := strings.Cut(string(status), "\n"+name+":")
	n := 0
	_, err = fmt.Sscan(value, &n)
	return n, err
}

// startSoon starts the program, and fails if it is not ready within most. The time in which its
// threads waited for a processor does not count.
func (p *process) startSoon(what string, most time.Duration) {
	p.Helper()
	took := p.start()
	held := p.heldUp()
	p.Logf("%s: ready after %v, held up for %v", what, took, held)
	if took-held > most {
		p.Errorf("%s: ready after %v and held up for %v, want %v besides", what, took, held, most)
	}
}

// heldUp returns how long the program's threads waited for a processor in all (the second number of
// /proc/PID/task/TID/schedstat). Threads that wait at the same time count twice.
func (p *process) heldUp() (held time.Duration) {
	p.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", p.cmd.Process.Pid)) // none without CONFIG_SCHED_INFO
	if err != nil {
		p.Fatal(err)
	}
	for _, task := range tasks {
		var ran, waited int64
		if text, err := os.ReadFile(task); err == nil { // else the thread has ended
			fmt.Sscan(string(text), &ran, &waited) //nolint:errcheck // then both are 0
		}
		held += time.Duration(waited)
	}
	return held
}

// settled returns the memory in kB when the API server has answered and the memory has not grown
// or shrunk for a while.
func (p *process) settled() (rss int) {
	p.Helper()
	end := time.Now().Add(patience)
	for p.metric("patchbay_node_last_sync_timestamp_seconds") == 0 && time.Now().Before(end) {
		time.Sleep(10 * time.Millisecond)
	}
	for same := 0; same < 10 && time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		now := p.memory("VmRSS")
		if same++; now > rss+rss/50 || now < rss-rss/50 {
			same, rss = 0, now
		}
	}
	if time.Now().After(end) {
		p.Fatalf("no answer of the API server, or no end of changes: %d kB", rss)
	}
	return rss
}

// metrics are the program's metrics.
func (p *process) metrics() string {
	p.Helper()
	resp, err := http.Get("http://127.0.0.1:9472/metrics")
	if err != nil {
		p.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // a test
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		p.Fatal(err)
	}
	return string(text)
}

// metric is a value of the program's metrics.
func (p *process) metric(name string) float64 {
	p.Helper()
	text := p.metrics()
	found := regexp.MustCompile(`(?m)^` + name + ` (\S+)$`).FindStringSubmatch(text)
	if found == nil {
		p.Fatalf("no %s in\n%s", name, text)
	}
	v, err := strconv.ParseFloat(found[1], 64)
	if err != nil {
		p.Fatal(err)
	}
	return v
}

// untilDetected waits until the kernel has found no duplicate of any address, since it reports that as
// a change.
func untilDetected(t *testing.T) {
	t.Helper()
	tentative := func(a netlink.Addr) bool { return a.Flags&unix.IFA_F_TENTATIVE != 0 }
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		list, err := nl.Retry(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_V6) })
		if err == nil && !slices.ContainsFunc(list, tentative) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%v %v", list, err)
		}
	}
}

// TestProgram runs the real program with 50 and then with 200 Nodes. It kills the program and
// starts it again; the kernel must report no change. It logs times and memory.
func TestProgram(t *testing.T) {
	uplink(t)
	api := newAPIServer(t)
	for i := range 50 {
		api.set(kubeNode(i + 1))
	}
	p := newProcess(t, api)
	for i, what := range []string{"50 Nodes, at first", "50 Nodes, again"} {
		p.stop(unix.SIGKILL)
		p.startSoon(what, []time.Duration{10 * time.Second, time.Second}[i]) // the first may read the program from a busy disk
		if n := routes(t); n != 98 {
			t.Errorf("%s: %d routes, want one of each family to each of 49 nodes", what, n)
		}
	}
	for i := 50; i < 200; i++ {
		api.set(kubeNode(i + 1))
	}
	for end := time.Now().Add(patience); routes(t) != 398; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d routes", routes(t))
		}
	}
	p.stop(unix.SIGKILL)
	untilDetected(t)
	silent := listen(t)
	p.startSoon("200 Nodes, again", time.Second)
	rss := p.settled()
	for end := time.Now().Add(90 * time.Second); rss > 30<<10 && time.Now().Before(end); rss = p.memory("VmRSS") {
		time.Sleep(time.Second) // on a busy machine, the program gives memory back once more after a minute
	}
	if events := silent(); len(events) > 0 {
		t.Errorf("a second start changed: %v", events)
	}
	for _, name := range []string{"VmRSS", "RssAnon", "RssFile", "VmHWM"} {
		t.Logf("200 Nodes: %s %d kB", name, p.memory(name))
	}
	if rss > 30<<10 {
		t.Errorf("the agent has %d kB of memory", rss)
	}
	p.stop(unix.SIGTERM)
	p.clean()
	if left, _ := filepath.Glob(p.dir + "/net.d/*"); routes(t) != 0 || len(left) > 0 {
		t.Errorf("clean left %d routes and %v", routes(t), left)
	}
	if _, err := os.Stat(StateDir(paths.Default())); !os.IsNotExist(err) {
		t.Errorf("clean left the state: %v", err)
	}
	if err := os.WriteFile(p.dir+"/net.d/10-pods.conflist", []byte(`{"name": "other"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	p.clean()
	if left, _ := filepath.Glob(p.dir + "/net.d/*"); len(left) != 1 {
		t.Error("clean removed another program's file")
	}
}

// routes counts the routes of the mesh.
func routes(t *testing.T) int {
	t.Helper()
	list, err := nl.Retry(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Protocol: 113}, netlink.RT_FILTER_PROTOCOL)
	})
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// listen collects the kernel's events about links, routes, addresses and the firewall, until the
// caller calls the result.
func listen(t *testing.T) (events func() []string) {
	t.Helper()
	route, err := vnl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE,
		unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR)
	if err != nil {
		t.Fatal(err)
	}
	tables, err := vnl.Subscribe(unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES)
	if err != nil {
		t.Fatal(err)
	}
	return func() (list []string) {
		defer route.Close()
		defer tables.Close()
		buf := make([]byte, 1<<16)
		for _, s := range []*vnl.NetlinkSocket{route, tables} {
			for {
				n, _, err := unix.Recvfrom(s.GetFd(), buf, unix.MSG_DONTWAIT)
				if err != nil {
					break
				}
				list = append(list, fmt.Sprintf("%x", buf[:min(n, 64)]))
			}
		}
		return list
	}
}

// TestTunnel: with the transport vxlan, the agent's mesh and the mesh of `patchbayd hosts` work on
// one host with the same port.
func TestTunnel(t *testing.T) {
	nettest.Need(t, nettest.LinkKind("vxlan"))
	uplink(t)
	where := paths.Default()
	m, err := mesh.Open(mesh.Options{Paths: where})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	defer m.Clear(context.Background(), mesh.Self{}) //nolint:errcheck // the namespace ends
	hosts := mesh.Self{
		ID: "a", Underlay: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, Blocks: []netip.Prefix{netip.MustParsePrefix("10.200.1.0/24")},
		Subnets: []mesh.Subnet{{Network: "lan", Prefix: netip.MustParsePrefix("10.200.0.0/16")}},
	}
	peer := mesh.Peer{ID: "b", Underlay: []netip.Addr{netip.MustParseAddr("192.0.2.2")}, Blocks: []netip.Prefix{netip.MustParsePrefix("10.200.2.0/24")}, Transport: mesh.VXLAN}
	if err := m.Apply(context.Background(), hosts, []mesh.Peer{peer}); err != nil {
		t.Fatal(err)
	}
	l := newLab(t, 1, 2)
	l.start(func(o *Options) { o.Fabric, o.Transport, o.Paths = m, mesh.VXLAN, where })
	l.await("ready", func() bool { return l.Ready() == nil })
	l.await("two routes", func() bool { return routes(t) == 2 })
	l.stop()
	untilDetected(t)
	silent := listen(t)
	l.start(func(o *Options) { o.Fabric, o.Transport, o.Paths = m, mesh.VXLAN, where })
	l.await("ready", func() bool { return l.Ready() == nil })
	l.stop()
	if events := silent(); len(events) > 0 {
		t.Errorf("a second start changed: %v", events)
	}
	if err := m.Clear(context.Background(), l.opts.Mesh()); err != nil || routes(t) != 0 {
		t.Errorf("%v, %d routes", err, routes(t))
	}
	if out, err := exec.Command("ip", "route", "show", "proto", "112").Output(); err != nil || !strings.Contains(string(out), "10.200.2.0/24") {
		t.Errorf("the other mesh has %q (%v)", out, err)
	}
}
