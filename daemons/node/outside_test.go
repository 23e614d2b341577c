// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/internal/resident"
)

// renumbered is a Node that was registered again.
func renumbered(i, block int) *corev1.Node {
	n := kubeNode(i)
	n.UID, n.CreationTimestamp, n.Spec.PodCIDRs = "uid-2", metav1.Unix(int64(2000+i), 0), kubeNode(block).Spec.PodCIDRs
	return n
}

// podRecord is the record that the ADD of a pod writes.
func podRecord(pod string, addrs ...string) *record.Record {
	id := strings.ReplaceAll(pod, "/", "-")
	r := &record.Record{Plugin: "ptp", Owner: owner.Of("pods", id, "eth0"), Network: "pods", ContainerID: id, IfName: "eth0", Pod: pod}
	for _, a := range addrs {
		r.Elements = append(r.Elements, nft.Masqueraded(netip.MustParsePrefix(a), nft.Comment(string(r.Owner), r.Network, id, r.IfName))...)
	}
	return r
}

// pods changes the records of pods.
func (l *lab) pods(change func(*record.Dir) error) {
	l.Helper()
	store := record.New(l.dir)
	defer store.Close()
	if err := change(store); err != nil {
		l.Fatal(err)
	}
	resident.Signal(l.kernel)
}

func (l *lab) blocks() string {
	l.fabric.mu.Lock()
	defer l.fabric.mu.Unlock()
	return fmt.Sprint(l.fabric.self.Blocks)
}

// This Node is deleted and registered again with other podCIDRs. New pods get addresses of these,
// pods that run keep theirs, and the operator learns which ones, until they are gone.
func TestPodCIDRChanged(t *testing.T) {
	l := running(t, n2, 1, 2)
	web, db, other := podRecord("shop/web-0", "10.244.1.5/24", "fd00:244:0:1::5/64"), podRecord("shop/db-0", "fd00:244:0:1::6/64"), podRecord("other", "192.168.7.7/24")
	other.Pod = "" // a container with an address of no pod
	l.pods(func(d *record.Dir) error { return d.Write(web) })
	l.pods(func(d *record.Dir) error { return d.Write(db) })
	l.pods(func(d *record.Dir) error { return d.Write(other) })
	l.reports("")

	l.api.remove("n1", false)
	bare := renumbered(1, 9)
	bare.Spec = corev1.NodeSpec{}
	l.api.set(bare)
	l.api.set(renumbered(1, 9))
	l.await("the new podCIDR", func() bool { return strings.Contains(l.conf(), `"subnet": "10.244.9.0/24"`) })
	const says = "pods with addresses of podCIDRs that Node n1 no longer has: 2, shop/db-0 (fd00:244:0:1::6), shop/web-0 (10.244.1.5)."
	l.await("an Event", func() bool { return strings.Contains(l.event(podCIDRChanged), says) })
	l.reports(says)
	l.reports("kubectl drain n1 --ignore-daemonsets")
	const both = "[10.244.9.0/24 fd00:244:0:9::/64 10.244.1.0/24 fd00:244:0:1::/64]"
	if l.Ready() != nil || l.fabric.peerList() != n2 || l.blocks() != both {
		t.Errorf("%v %s %s", l.Ready(), l.fabric.peerList(), l.blocks())
	}
	l.stop() // a later agent knows it, too
	l.api.say(func(s *apiServer) { s.refuse = http.StatusServiceUnavailable })
	l.start()
	l.reports(says)
	l.await("both podCIDRs", func() bool { return l.blocks() == both })
	l.api.say(func(s *apiServer) { s.refuse = 0 })

	l.api.set(renumbered(3, 1)) // the controller manager gives them to another Node
	l.await("its own podCIDRs alone", func() bool { return l.blocks() == "[10.244.9.0/24 fd00:244:0:9::/64]" })
	l.reports(says)
	l.pods(func(d *record.Dir) error { return d.Remove("pods", db.Owner, "ptp") })
	l.reports("no longer has: 1, shop/web-0 (10.244.1.5).")
	l.pods(func(d *record.Dir) error { return d.Remove("pods", web.Owner, "ptp") })
	l.reports("")
}

// Another Node is deleted and registered again. Its pods stay reachable, until a third Node has its
// former podCIDRs.
func TestPeerPodCIDRChanged(t *testing.T) {
	l := running(t, n2, 1, 2)
	l.api.remove("n2", false)
	l.awaitPeers("")
	l.stop() // while the Node is away
	l.start()
	l.api.set(renumbered(2, 8))
	l.awaitPeerBlocks("[10.244.8.0/24 fd00:244:0:8::/64 10.244.2.0/24 fd00:244:0:2::/64]")
	l.api.remove("n2", false)
	l.api.set(renumbered(2, 7))
	l.awaitPeerBlocks("[10.244.7.0/24 fd00:244:0:7::/64 10.244.8.0/24 fd00:244:0:8::/64 10.244.2.0/24 fd00:244:0:2::/64]")
	l.stop()
	l.start()
	l.awaitPeerBlocks("[10.244.7.0/24 fd00:244:0:7::/64 10.244.8.0/24 fd00:244:0:8::/64 10.244.2.0/24 fd00:244:0:2::/64]")
	l.api.set(renumbered(3, 2))
	l.awaitPeerBlocks("[10.244.7.0/24 fd00:244:0:7::/64 10.244.8.0/24 fd00:244:0:8::/64] [10.244.2.0/24 fd00:244:0:2::/64]")
	l.api.remove("n3", false)
	l.api.remove("n2", false)
	l.awaitPeers("")
	l.pass(grace + time.Minute) // a Node that comes now is another machine
	l.await("n2 is forgotten", func() bool {
		return len(l.mirror.view().deleted) == 0
	})
	l.api.set(kubeNode(2))
	l.awaitPeerBlocks("[10.244.2.0/24 fd00:244:0:2::/64]")
}

func (l *lab) awaitPeerBlocks(want string) {
	l.Helper()
	l.await("blocks "+want, func() bool {
		l.fabric.mu.Lock()
		defer l.fabric.mu.Unlock()
		var list []string
		for _, p := range l.fabric.peers {
			list = append(list, fmt.Sprint(p.Blocks))
		}
		return strings.Join(list, " ") == want
	})
}
