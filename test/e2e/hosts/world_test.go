// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/test/reftest"
	"github.com/patchbay-net/patchbay/test/e2e/gate"
)

// TestMain runs the tests if PATCHBAY_E2E is set.
func TestMain(m *testing.M) {
	gate.Enter()
	os.Exit(m.Run())
}

// world is a switch with an etcd and three Docker hosts connected to it.
type world struct {
	*testing.T
	dir       string // LAB_DIR
	script    string // test/labs/docker/dockerd
	plugins   string
	patchbayd string
	network   *exec.Cmd // sleeps in the switch's namespace
	etcd      *server
	hosts     []*host
}

// newWorld starts the switch, etcd and, in parallel, the hosts.
func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, dir: t.TempDir(), script: reftest.Lab(t, "docker/dockerd"), plugins: reftest.Ours(t), patchbayd: reftest.Daemon(t)}
	w.network = w.holder()
	w.inSwitch("sh", "-c", "ip link set lo up; ip link add br0 type bridge; ip link set br0 up")
	w.etcd = newServer(w)
	var wg sync.WaitGroup
	for i, kind := range []string{"new", "new", "old"} {
		h := &host{world: w, name: fmt.Sprint("hosts", i+1), kind: kind, addr: fmt.Sprint("192.0.2.", 11+i)}
		w.hosts = append(w.hosts, h)
		wg.Go(h.up)
	}
	t.Cleanup(w.down)
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	for _, h := range w.hosts {
		h.join()
		h.startDriver()
		h.startAgent()
	}
	return w
}

func (w *world) down() {
	for _, h := range w.hosts {
		h.down()
	}
	if w.Failed() {
		w.dump()
	}
}

// dump shows the logs of all processes.
func (w *world) dump() {
	logs, _ := filepath.Glob(filepath.Join(w.dir, "*.log"))
	for _, path := range logs {
		text, _ := os.ReadFile(path)
		w.Logf("%s:\n%s", filepath.Base(path), text[max(0, len(text)-8000):])
	}
}

// holder starts a process that keeps a network namespace.
func (w *world) holder() *exec.Cmd {
	w.Helper()
	cmd := exec.Command("unshare", "-n", "sh", "-c", "echo; exec sleep infinity")
	out, err := cmd.StdoutPipe()
	must(w, err)
	must(w, cmd.Start())
	w.Cleanup(func() { end(cmd) })
	_, err = out.Read(make([]byte, 1)) // it is in its namespace
	must(w, err)
	return cmd
}

func (w *world) inSwitch(argv ...string) string {
	w.Helper()
	return run(w.T, nil, append([]string{"nsenter", "-t", pid(w.network), "-n", "--"}, argv...)...)
}

// plug connects the namespace of a process to the switch. There the interface is up0, with an
// address.
func (w *world) plug(holder, port, addr string) {
	w.Helper()
	w.inSwitch("sh", "-c", fmt.Sprintf("ip link add %[1]s type veth peer name up0 netns %[2]s && ip link set %[1]s master br0 up", port, holder))
	run(w.T, nil, "nsenter", "-t", holder, "-n", "--", "sh", "-c", "ip link set lo up; ip addr add "+addr+"/24 dev up0; ip link set up0 up")
}

// command starts a process whose output goes to a log.
func (w *world) command(log string, argv ...string) *exec.Cmd {
	w.Helper()
	f, err := os.OpenFile(filepath.Join(w.dir, log), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	must(w, err)
	defer f.Close()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = f, f
	must(w, cmd.Start())
	return cmd
}

// server is the etcd, in a namespace with one link to the switch.
type server struct {
	*world
	home, cmd *exec.Cmd
}

// etcdAddr is the etcd's address.
const etcdAddr = "192.0.2.2"

func newServer(w *world) *server {
	w.Helper()
	s := &server{world: w, home: w.holder()}
	w.plug(pid(s.home), "etcd", etcdAddr)
	s.start()
	w.Cleanup(func() { end(s.cmd) })
	return s
}

func (s *server) start() {
	s.Helper()
	url := "http://" + etcdAddr + ":2379"
	s.cmd = s.command("etcd.log", "nsenter", "-t", pid(s.home), "-n", "--", "etcd", "--data-dir", filepath.Join(s.dir, "etcd"),
		"--listen-client-urls", url, "--advertise-client-urls", url, "--listen-peer-urls", "http://127.0.0.1:2380", "--unsafe-no-fsync")
}

func (s *server) kill() {
	s.Helper()
	must(s, s.cmd.Process.Kill())
	_ = s.cmd.Wait()
}

// link sets the server's only link up or down.
func (s *server) link(state string) {
	s.Helper()
	s.inSwitch("ip", "link", "set", "etcd", state)
}

// store returns the URL of the etcd for the agents.
func (s *server) store() string { return "etcd://" + etcdAddr + "/e2e" }

func end(cmd *exec.Cmd) {
	_ = cmd.Process.Signal(unix.SIGTERM)
	late := time.AfterFunc(10*time.Second, func() { _ = cmd.Process.Kill() })
	defer late.Stop()
	_ = cmd.Wait()
}

func pid(cmd *exec.Cmd) string { return strconv.Itoa(cmd.Process.Pid) }

// try runs a command and returns its output.
func try(env []string, argv ...string) (string, error) {
	var out, said bytes.Buffer
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s%s", strings.Join(argv, " "), err, &out, &said)
	}
	return strings.TrimSpace(out.String()), nil
}

func run(t *testing.T, env []string, argv ...string) string {
	t.Helper()
	out, err := try(env, argv...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
