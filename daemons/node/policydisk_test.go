// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/policy"
	"github.com/patchbay-net/patchbay/internal/policy/enforce"
	policymirror "github.com/patchbay-net/patchbay/internal/policy/mirror"
)

// The disk hangs while the mirror's files are synced. The kernel has the program, and an ADD the decision.
func TestPolicyWhileTheDiskStandsStill(t *testing.T) {
	dir := t.TempDir()
	o := &Options{Paths: paths.Paths{State: dir, Run: dir}}
	o.Node = "n1"
	a := &Agent{opts: *o}
	a.trouble.changed = func() {}
	a.trouble.problems.Log = t.Logf
	a.metrics = newMetrics(a)
	n := newNetworkPolicy(o, newPolicyStatus(a))
	fw := nft.Open(dir)
	defer fw.Close() //nolint:errcheck // committed
	n.enforcer = enforce.New(fw, enforce.Options{})
	defer n.enforcer.Clear(context.Background()) //nolint:errcheck // the namespace ends
	still, moves, ended := make(chan bool), make(chan bool), make(chan error)
	n.sync = func(p paths.Paths, files []string) error {
		close(still)
		<-moves
		return policymirror.Sync(p, files)
	}
	s := &policy.State{Node: "n1", Namespaces: []policy.Namespace{{Name: "shop"}}, Policies: []policy.NetworkPolicy{{Namespace: "shop", Name: "web"}}}
	go func() { ended <- n.program(t.Context(), s) }()
	select {
	case <-still:
	case <-time.After(10 * time.Second):
		t.Fatal("the files are not synced")
	}
	n.mu.Lock()
	if n.loaded == nil {
		t.Error("the kernel waits for the disk")
	}
	n.mu.Unlock()
	d, err := policymirror.Read(n.paths, policymirror.Pod{Namespace: "shop", Name: "new", UID: "u"})
	if err != nil || !d.Sides[policy.Ingress].Isolated {
		t.Errorf("a new pod starts with %+v, %v", d, err)
	}
	close(moves)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
