// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/patchbay-net/patchbay/daemons/hosts/store"
	"github.com/patchbay-net/patchbay/daemons/test/storetest"
	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
)

// patience is how long a test waits for what must happen; the machine may be busy.
const patience = 60 * time.Second

// server is Debian's etcd, started for one test.
type server struct {
	t        testing.TB
	endpoint string
	args     []string
	cmd      *exec.Cmd
}

func newServer(t testing.TB, args ...string) *server {
	t.Helper()
	nettest.Need(t, nettest.Program("etcd"))
	s := &server{t: t, endpoint: newPort()}
	scheme := "http://"
	if len(args) > 0 {
		scheme = "https://"
	}
	peer := "http://" + newPort()
	s.args = append([]string{
		"--name=one", "--data-dir=" + filepath.Join(t.TempDir(), "data"), "--logger=zap", "--log-level=error", "--bcrypt-cost=4",
		"--listen-client-urls=" + scheme + s.endpoint, "--advertise-client-urls=" + scheme + s.endpoint,
		"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer, "--initial-cluster=one=" + peer,
	}, args...)
	s.start()
	t.Cleanup(s.kill)
	return s
}

// given is the number of ports that servers have.
var given atomic.Int32

// newPort returns a port of the test's namespace that no other program gets while its
// server is away: it is outside the range of outgoing connections.
func newPort() string { return fmt.Sprint("127.0.0.1:", 20000+given.Add(1)) }

func (s *server) start() {
	s.t.Helper()
	s.cmd = exec.Command("etcd", s.args...)
	s.cmd.Stderr = os.Stderr
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
}

// kill does what the kernel does when memory is short.
func (s *server) kill() {
	if s.cmd != nil {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
		s.cmd = nil
	}
}

func (s *server) signal(sig syscall.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Fatal(err)
	}
}

// stop returns when every thread has stopped: each stops when it runs next, and the others
// answer meanwhile.
func (s *server) stop() {
	s.t.Helper()
	s.signal(syscall.SIGSTOP)
	var status syscall.WaitStatus
	for !status.Stopped() {
		if _, err := syscall.Wait4(s.cmd.Process.Pid, &status, syscall.WUNTRACED, nil); err != nil && !errors.Is(err, syscall.EINTR) {
			s.t.Fatal(err)
		}
	}
}

func (s *server) options(t testing.TB) Options {
	return Options{Endpoints: []string{s.endpoint}, Cluster: strings.NewReplacer("/", "-", "#", "-").Replace(t.Name()), Timeout: patience}
}

func open(t testing.TB, o Options) *Engine {
	t.Helper()
	s, err := connect(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

// openOwn opens the store in a directory as the agent does, which serves it.
func openOwn(t testing.TB, dir string) *Engine {
	t.Helper()
	s, err := OpenAgent(t.Context(), "file://"+dir, "")
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	return s
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// place is a cluster of an etcd.
type place struct {
	o     Options
	admin *Engine // of the same etcd
}

func (p place) Open(t testing.TB) store.Store { t.Helper(); return open(t, p.o) }

func (p place) Put(t testing.TB, table, key string, data []byte) {
	t.Helper()
	must(t, p.admin.call(t.Context(), func(ctx context.Context, c *clientv3.Client) error {
		_, err := c.Put(ctx, "/patchbay/v1/"+p.o.Cluster+"/"+table+"/"+key, string(data))
		return err
	}))
}

func (p place) Compact(t testing.TB) { t.Helper(); compact(t, p.admin) }

// The contract holds on Debian's etcd, and on the etcd that the agent itself runs.
func TestContract(t *testing.T) {
	begin := func(o Options) *storetest.Contract {
		admin, n := open(t, o), 0
		return storetest.Begin(t, 6*time.Second, func() storetest.Place {
			n++
			of := o
			of.Cluster += fmt.Sprint(n)
			return place{of, admin}
		})
	}
	debian, own := begin(newServer(t).options(t)), begin(openOwn(t, t.TempDir()).opts)
	t.Run("etcd", debian.Run)
	t.Run("own", own.Run)
	t.Run("etcd/LeaseIsKept", debian.LeaseIsKept)
	t.Run("own/LeaseIsKept", own.LeaseIsKept)
}

func network(name string) store.Network { return storetest.Network(name) }

func compact(t testing.TB, s *Engine) {
	t.Helper()
	must(t, s.call(t.Context(), func(ctx context.Context, c *clientv3.Client) error {
		got, err := c.Get(ctx, "x")
		if err == nil {
			_, err = c.Compact(ctx, got.Header.Revision)
		}
		return err
	}))
}

// again repeats a change until etcd confirms it. An etcd that dies before it answers may have made
// the change.
func again(t testing.TB, change func() error) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		err := change()
		if err == nil || errors.Is(err, store.ErrExists) || errors.Is(err, store.ErrConflict) {
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// watched delivers the keys of a watch's events, or the text of its error.
func watched(ctx context.Context, t store.Table[store.Network], after store.Revision) <-chan string {
	keys := make(chan string, 100)
	go func() {
		defer close(keys)
		for e, err := range t.Watch(ctx, after) {
			switch {
			case errors.Is(err, store.ErrCompacted):
				keys <- "compacted"
			case err != nil:
				keys <- err.Error()
			case e.Deleted:
				keys <- "-" + e.Object.Name
			default:
				keys <- "+" + e.Object.Name
			}
		}
	}()
	return keys
}

func want(t testing.TB, keys <-chan string, what ...string) {
	t.Helper()
	for _, w := range what {
		select {
		case got := <-keys:
			if got != w {
				t.Fatalf("the watch delivered %q, want %q", got, w)
			}
		case <-time.After(patience):
			t.Fatalf("the watch is silent, want %q", w)
		}
	}
}

// etcd is killed and started again: watches and leases continue, and nothing is lost.
func TestRestart(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	s := open(t, server.options(t))
	ctx := t.Context()
	l, err := s.Session(ctx, patience)
	must(t, err)
	_, revision, err := s.Networks().List(ctx, "")
	must(t, err)
	keys := watched(ctx, s.Networks(), revision)
	_, err = s.Networks().Create(ctx, network("before"), l)
	must(t, err)
	want(t, keys, "+before")
	for round := range 2 {
		server.kill()
		server.start()
		name := fmt.Sprint("after", round)
		again(t, func() error { _, err := s.Networks().Create(ctx, network(name), l); return err })
		want(t, keys, "+"+name)
	}
	items, _, err := s.Networks().List(ctx, "")
	must(t, err)
	if len(items) != 3 {
		t.Errorf("%v", items)
	}
	must(t, l.End(ctx))
	want(t, keys, "-after0", "-after1", "-before")
}

// etcd is away for longer than a ttl. Calls report that within their time limit. An etcd that was
// killed and restarted still has the lease, and the holder continues with it: otherwise 500 hosts
// would write all their objects again. An etcd that was only stopped has ended the lease, and
// reports that when it continues.
func TestAwayLongerThanALease(t *testing.T) {
	t.Parallel()
	type absence struct {
		begin, end func(*server)
		lost       bool
	}
	ttl, ways := 2*time.Second, map[string]absence{"stopped": {(*server).stop, func(s *server) { s.signal(syscall.SIGCONT) }, true}}
	if draw.All(t) { // TestRestart kills too, but etcd is not away for as long
		ttl = 10 * time.Second // longer than a new connection takes
		ways["killed"] = absence{(*server).kill, (*server).start, false}
	}
	for how, away := range ways {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			server := newServer(t)
			o := server.options(t)
			s := open(t, o)
			ctx := t.Context()
			l, err := s.Session(ctx, ttl)
			must(t, err)
			_, revision, err := s.Networks().List(ctx, "")
			must(t, err)
			keys := watched(ctx, s.Networks(), revision)
			_, err = s.Networks().Create(ctx, network("leased"), l)
			must(t, err)
			want(t, keys, "+leased")
			away.begin(server)
			begin := time.Now()
			o.Timeout = 2 * time.Second
			unanswered(t, open(t, o), server.endpoint)
			<-time.After(time.Until(begin.Add(ttl + ttl/2)))
			away.end(server)
			if !away.lost {
				goesOn(t, s, l, keys, ttl)
				return
			}
			<-l.Lost()
			want(t, keys, "-leased")
			next, err := s.Session(ctx, patience)
			must(t, err)
			_, err = s.Networks().Create(ctx, network("leased"), next)
			must(t, err)
			want(t, keys, "+leased")
		})
	}
}

// goesOn checks that a lease is renewed for two more ttls, and that the watch delivers no
// deletion.
func goesOn(t *testing.T, s *Engine, l store.Session, keys <-chan string, ttl time.Duration) {
	t.Helper()
	again(t, func() error { _, err := s.Networks().Create(t.Context(), network("more"), l); return err })
	want(t, keys, "+more")
	select {
	case <-l.Lost():
		t.Error("the lease is lost")
	case got := <-keys:
		t.Errorf("the watch delivered %q", got)
	case <-time.After(2 * ttl):
	}
}

func unanswered(t *testing.T, s *Engine, endpoint string) {
	t.Helper()
	_, err := s.Networks().Get(t.Context(), "x")
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), endpoint) || !strings.Contains(err.Error(), "within 2s") {
		t.Errorf("etcd is away: %v", err)
	}
	t.Log(err)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err = s.Networks().Get(ctx, "x"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("etcd is away, and the caller has no time: %v", err)
	}
}

// After a long partition the client gives up its connection, and the history is compacted
// meanwhile: the watch fails and leaves no gap.
func TestCompactedWhileAway(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	s, other := open(t, server.options(t)), open(t, server.options(t))
	ctx := t.Context()
	_, revision, err := s.Networks().List(ctx, "")
	must(t, err)
	for range 3 {
		_, err = other.Networks().Create(ctx, network("n"), nil)
		must(t, err)
		must(t, other.Networks().Delete(ctx, "n", ""))
	}
	compact(t, other)
	want(t, watched(ctx, s.Networks(), revision), "compacted")
	_, revision, err = s.Networks().List(ctx, "")
	must(t, err)
	keys := watched(ctx, s.Networks(), revision)
	_, err = other.Networks().Create(ctx, network("n"), nil)
	must(t, err)
	want(t, keys, "+n")
}

// While a watch runs, an empty etcd replaces the etcd, and its revisions begin at 1 again.
func TestEtcdIsAnotherOne(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	s := open(t, server.options(t))
	ctx := t.Context()
	for i := range 5 {
		_, err := s.Networks().Create(ctx, network(fmt.Sprint("n", i)), nil)
		must(t, err)
	}
	_, revision, err := s.Networks().List(ctx, "")
	must(t, err)
	keys := watched(ctx, s.Networks(), revision)
	_, err = s.Networks().Create(ctx, network("last"), nil)
	must(t, err)
	want(t, keys, "+last")
	server.anew()
	want(t, keys, "compacted")
}

// anew replaces etcd by one without data.
func (s *server) anew() {
	s.t.Helper()
	s.kill()
	s.args = append(s.args, "--data-dir="+filepath.Join(s.t.TempDir(), "data"))
	s.start()
}
