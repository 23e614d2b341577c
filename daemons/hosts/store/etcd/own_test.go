// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"bufio"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/daemons/hosts/store"
	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
)

// asWriter names the directory of a writer, which is this program again.
const asWriter = "PATCHBAY_TEST_WRITER"

func TestMain(m *testing.M) {
	if dir := os.Getenv(asWriter); dir != "" {
		writeForever(dir)
	}
	nettest.Main(m)
}

// writeForever serves the store of a directory, changes networks in it, and prints each
// change that is confirmed, until it is killed.
func writeForever(dir string) {
	ctx := context.Background()
	s, err := OpenAgent(ctx, "file://"+dir, "")
	for i := 0; err == nil; i++ {
		name := fmt.Sprint("n", rand.IntN(5))
		item, getErr := s.Networks().Get(ctx, name)
		at := item.Revision
		item.Object.Name, item.Object.MTU = name, i
		switch {
		case errors.Is(getErr, store.ErrNotFound):
			at, err = s.Networks().Create(ctx, item.Object, nil)
		case getErr != nil:
			err = getErr
		case i%3 == 0:
			err, at = s.Networks().Delete(ctx, name, at), "gone"
		default:
			at, err = s.Networks().Update(ctx, item.Object, at)
		}
		fmt.Println(name, item.Object.MTU, at)
	}
	fmt.Println("failed", 0, err)
	os.Exit(1)
}

// A process that serves its store is killed at any point. The next one has all that was
// confirmed, and at most the change after that.
func TestKilled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	confirmed := map[string]string{}
	for range draw.Number(t, "PATCHBAY_KILL_ROUNDS", 4, 12) {
		last := runWriter(t, dir, time.Duration(rand.IntN(60_000))*time.Microsecond, confirmed)
		s := openOwn(t, dir)
		items, _, err := s.Networks().List(t.Context(), "")
		must(t, err)
		got := map[string]string{}
		for _, i := range items {
			got[i.Object.Name] = fmt.Sprint(i.Object.MTU, " ", i.Revision)
		}
		differ := 0
		for n := range 5 {
			if name := fmt.Sprint("n", n); got[name] != confirmed[name] {
				differ++
			}
		}
		if differ > 1 {
			t.Errorf("there is %v, confirmed was %v, last %s", got, confirmed, last)
		}
		confirmed = got
		must(t, s.Close())
	}
}

// runWriter notes what a writer had confirmed for each name when it was killed.
func runWriter(t *testing.T, dir string, life time.Duration, confirmed map[string]string) (last string) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), asWriter+"="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if last == "" {
			time.AfterFunc(life, func() { _ = cmd.Process.Kill() })
		}
		last = lines.Text()
		name, is, _ := strings.Cut(last, " ")
		if name == "failed" {
			t.Errorf("a writer failed: %s", is)
		}
		if confirmed[name] = is; strings.HasSuffix(is, "gone") {
			delete(confirmed, name)
		}
	}
	_ = cmd.Wait()
	return last
}

// The agent serves the store to commands. Without an agent, a command opens the store itself, and
// other commands and the agent wait for it.
func TestAgentAndCommands(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	command := func() *Engine {
		s, err := Open(t.Context(), "file://"+dir)
		must(t, err)
		return s
	}
	first := command()
	_, err := first.Networks().Create(t.Context(), network("a"), nil)
	must(t, err)
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if s, err := Open(short, "file://"+dir); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a second command: %v, %v", s, err)
	}
	agents := make(chan *Engine)
	go func() { agents <- openOwn(t, dir) }()
	must(t, first.Close())
	agent := <-agents
	for range 2 {
		s := command()
		if items, _, err := s.Networks().List(t.Context(), ""); err != nil || len(items) != 1 {
			t.Errorf("%v, %v", items, err)
		}
		must(t, s.Close())
	}
	late := command()
	must(t, agent.Close())
	late.opts.Timeout = time.Second
	if _, err := late.Networks().Get(t.Context(), "a"); err == nil || !strings.Contains(err.Error(), "does patchbayd hosts run?") {
		t.Errorf("the agent is gone: %v", err)
	}
	must(t, late.Close())
	socket := filepath.Join(dir, "etcd", socketName)
	if st, err := os.Stat(filepath.Dir(socket)); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("another user reaches the socket: %v, %v", st, err)
	}
}

// A host serves its store to another host, but only to clients with a certificate.
func TestServe(t *testing.T) {
	t.Parallel()
	ca, stranger := newAuthority(t), newAuthority(t)
	both := []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	ca.issue("server", &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: both})
	ca.issue("client", &x509.Certificate{ExtKeyUsage: both})
	ca.issue("mail", &x509.Certificate{ExtKeyUsage: both, DNSNames: []string{"mail.example.org"}})
	ca.issue("host2", &x509.Certificate{ExtKeyUsage: both, DNSNames: []string{"host2.example.org"}})
	stranger.issue("client", &x509.Certificate{ExtKeyUsage: both})
	files := func(a *authority, name string) string {
		return "?ca=" + ca.path("ca.pem") + "&cert=" + a.path(name+".pem") + "&key=" + a.path(name+".key")
	}
	at, here := newPort(), "file://"+t.TempDir()
	for _, wrong := range []string{at, at + "?ca=" + ca.path("ca.pem"), at + files(stranger, "server"), ":" + files(ca, "server"), at + files(ca, "server") + "&x=y"} {
		if s, err := OpenAgent(t.Context(), here, wrong); err == nil {
			t.Errorf("%s: %v", wrong, s)
		}
	}
	if s, err := OpenAgent(t.Context(), "etcd://h/c", at+files(ca, "server")); err == nil || !strings.Contains(err.Error(), "only serve its own store") {
		t.Errorf("it serves the store of others: %v, %v", s, err)
	}
	s, err := OpenAgent(t.Context(), here, at+files(ca, "server")+"&names=client,host2.example.org")
	must(t, err)
	defer func() { must(t, s.Close()) }()
	for i, name := range []string{"client", "host2"} { // by its subject, and by its host name
		guest, err := Open(t.Context(), "etcds://"+at+"/"+Cluster+files(ca, name))
		must(t, err)
		_, err = guest.Networks().Create(t.Context(), network(string(rune('a'+i))), nil)
		must(t, err)
		must(t, guest.Close())
	}
	want(t, watched(t.Context(), s.Networks(), ""), "+a", "+b")
	var refused sync.WaitGroup
	for name, query := range map[string]string{"another name": files(ca, "mail"), "a stranger": files(stranger, "client"), "without certificate": "?ca=" + ca.path("ca.pem")} {
		refused.Go(func() {
			s, err := Open(t.Context(), "etcds://"+at+"/"+Cluster+query)
			if err != nil {
				t.Error(err)
				return
			}
			s.opts.Timeout = 2 * time.Second
			if _, err := s.Networks().Get(t.Context(), "a"); err == nil || errors.Is(err, store.ErrNotFound) {
				t.Errorf("%s: %v", name, err)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	refused.Wait()
}

// A copy of the files is a separate store. Damaged files cause an error that names them.
func TestFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := openOwn(t, dir)
	_, err := s.Networks().Create(t.Context(), network("a"), nil)
	must(t, err)
	must(t, s.Close())
	elsewhere := t.TempDir()
	must(t, os.CopyFS(elsewhere, os.DirFS(dir)))
	must(t, os.Chmod(filepath.Join(elsewhere, "etcd"), 0o700))
	again, other := openOwn(t, dir), openOwn(t, elsewhere)
	_, err = again.Networks().Create(t.Context(), network("b"), nil)
	must(t, err)
	if items, _, err := other.Networks().List(t.Context(), ""); err != nil || len(items) != 1 {
		t.Errorf("the copy has %v, %v", items, err)
	}
	must(t, again.Close())
	must(t, os.Truncate(filepath.Join(dir, "etcd/member/snap/db"), 7))
	for range 2 {
		if s, err := OpenAgent(t.Context(), "file://"+dir, ""); err == nil || !strings.Contains(err.Error(), dir+"/etcd") || !strings.Contains(err.Error(), "invalid database") {
			t.Errorf("damaged: %v, %v", s, err)
		}
	}
	must(t, os.Chmod(elsewhere, 0o777))
	if s, err := Open(t.Context(), "file://"+elsewhere); !errors.Is(err, durable.ErrNotOurs) {
		t.Errorf("others may write to it: %v, %v", s, err)
	}
}
