// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/daemons/node/plan"
	"github.com/patchbay-net/patchbay/internal/mesh"
	"github.com/patchbay-net/patchbay/internal/podnet"
)

// A smaller path MTU changes routes, but never the network's file: after each change containerd 2
// reads its directory again, and a slow ADD then makes all pods wait.
func TestSmallerPath(t *testing.T) {
	l := newLab(t, 1, 2)
	found := make(chan bool)
	l.fabric.probe = func(ctx context.Context, changed func()) error {
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-found:
				changed()
			}
		}
	}
	l.start()
	l.await("ready", func() bool { return l.Ready() == nil })
	before, err := os.Stat(filepath.Join(l.dir, "net.d", podnet.File))
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		was := l.fabric.applied()
		found <- true
		l.await("the routes' new MTU", func() bool { return l.fabric.applied() > was })
	}
	after, err := os.Stat(filepath.Join(l.dir, "net.d", podnet.File))
	if err != nil || !os.SameFile(before, after) || !before.ModTime().Equal(after.ModTime()) {
		t.Errorf("%s was written again (%v)", podnet.File, err)
	}
}

// An agent that may not send echo requests reports this. Routes and pods work without them.
func TestUnprobed(t *testing.T) {
	l := newLab(t, 1, 2)
	l.fabric.probe = func(context.Context, func()) error { return errors.New("open ICMP socket (CAP_NET_RAW)") }
	l.start()
	l.await("ready", func() bool { return l.Ready() == nil })
	l.awaitProblem(pathsUnprobed)
	l.awaitPeers(n2)
	l.await("an Event", func() bool { return l.event(pathsUnprobed) != "" })
	if w := httpRecorder(l.Handler(), "/metrics"); !strings.Contains(w, `patchbay_node_problems{reason="PathsNotProbed"} 1`) {
		t.Error(w)
	}
}

// If Probe turned an offload off, the agent writes an Event. Other warnings of the mesh are only
// logged.
func TestOffloadOff(t *testing.T) {
	l := running(t, n2, 1, 2)
	l.Warn(errors.New("a sysctl is read-only"))
	l.Warn(fmt.Errorf("checksum offload of patchbay-pods is turned off: %w", mesh.ErrOffload))
	l.await("an Event", func() bool { return strings.Contains(l.event(offloadOff), "patchbay-pods is turned off") })
	l.Detour(errors.New("the tunnel carries them to node-2"))
	l.await("an Event", func() bool { return strings.Contains(l.event(directDropped), "to node-2") })
	l.Detour(nil)
	l.await("no problem", func() bool { return l.trouble.mine()[directDropped] == "" })
	if mine := l.trouble.mine(); len(mine) != 1 {
		t.Errorf("%v", mine)
	}
}

// event returns the text of the first Event with a reason.
func (l *lab) event(reason plan.Reason) (text string) {
	l.api.say(func(s *apiServer) {
		for _, e := range s.events {
			if e.Reason == string(reason) {
				text = e.Message
				return
			}
		}
	})
	return text
}
