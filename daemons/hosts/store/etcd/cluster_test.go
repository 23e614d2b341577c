// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/daemons/hosts/store"
	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
)

// newCluster starts three members.
func newCluster(t *testing.T) (members []*server, endpoints []string) {
	t.Helper()
	nettest.Need(t, nettest.Program("etcd"))
	var peers, initial []string
	for i := range 3 {
		peers = append(peers, "http://"+newPort())
		initial = append(initial, fmt.Sprintf("m%d=%s", i, peers[i]))
	}
	for i, peer := range peers {
		s := &server{t: t, endpoint: newPort()}
		s.args = []string{
			fmt.Sprint("--name=m", i), "--data-dir=" + filepath.Join(t.TempDir(), "data"), "--logger=zap", "--log-level=panic",
			"--listen-client-urls=http://" + s.endpoint, "--advertise-client-urls=http://" + s.endpoint,
			"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer, "--initial-cluster=" + strings.Join(initial, ","),
		}
		s.start()
		t.Cleanup(s.kill)
		members, endpoints = append(members, s), append(endpoints, s.endpoint)
	}
	return members, endpoints
}

// One of three members is cut off. Its clients get no error: their watches, calls and leases
// continue at another member.
func TestMemberCutOff(t *testing.T) {
	t.Parallel()
	t.Run("killed", func(t *testing.T) {
		t.Parallel()
		cutOff(t, (*server).kill, (*server).start, 5*time.Second)
	})
	if draw.All(t) { // this takes as long as a dead connection stays in use
		t.Run("stopped", func(t *testing.T) {
			t.Parallel()
			cutOff(t, (*server).stop, func(s *server) { s.signal(syscall.SIGCONT) }, 15*time.Second)
		})
	}
}

func cutOff(t *testing.T, begin, end func(*server), ttl time.Duration) {
	t.Helper()
	members, endpoints := newCluster(t)
	o := Options{Endpoints: endpoints, Cluster: "blue", Timeout: patience}
	stores := []*Engine{open(t, o), open(t, o), open(t, o)}
	ctx := t.Context()
	_, revision, err := stores[0].Networks().List(ctx, "")
	must(t, err)
	var watches []<-chan string
	for _, s := range stores {
		watches = append(watches, watched(ctx, s.Networks(), revision), watched(ctx, s.Networks(), revision))
	}
	var leases []store.Session
	for _, s := range stores {
		l, err := s.Session(ctx, ttl)
		must(t, err)
		leases = append(leases, l)
	}
	begin(members[0])
	began := time.Now()
	again(t, func() error { _, err := stores[0].Networks().Create(ctx, network("n"), nil); return err })
	t.Logf("written after %v", time.Since(began))
	for i, keys := range watches {
		want(t, keys, "+n")
		t.Logf("watch %d told after %v", i, time.Since(began))
	}
	<-time.After(time.Until(began.Add(ttl + ttl/3)))
	end(members[0])
	for i, l := range leases {
		select {
		case <-l.Lost():
			t.Errorf("lease %d is lost", i)
		default:
		}
	}
}
