// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/patchbay-net/patchbay/internal/clock"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/policy"
	"github.com/patchbay-net/patchbay/internal/policy/enforce"
	"github.com/patchbay-net/patchbay/internal/policy/mirror"
	"github.com/patchbay-net/patchbay/internal/record"
)

// patience is how long the kernel may differ from the mirror while the agent loads a change.
const patience = 2 * time.Second

// policies finds pods for which the kernel does not enforce the policies that the agent wrote for ADDs,
// and what makes policies ineffective.
func policies(ctx context.Context, n *Node) (found []Finding, err error) {
	if damaged := mirror.Damaged(n.Paths); len(damaged) > 0 {
		found = append(found, problem("ADDs isolate pods, because the mirror of the network policies cannot be read: "+some(messages(damaged)), "do what the text says"))
	}
	wrong, enforced, err := n.unenforced()
	if err == nil && len(wrong) > 0 {
		n.wait(ctx, patience)
		before := wrong
		wrong, enforced, err = n.unenforced()
		wrong = slices.DeleteFunc(wrong, func(u unenforced) bool { return !slices.Contains(before, u) })
	}
	if err != nil {
		return found, err
	}
	found = append(found, n.enforcement(wrong)...)
	if enforced {
		found = append(found, n.ipvs()...)
	}
	return append(found, n.bridgedPast()...), nil
}

func messages(errs []error) (list []string) {
	for _, err := range errs {
		list = append(list, err.Error())
	}
	return list
}

func (n *Node) wait(ctx context.Context, d time.Duration) {
	if n.Wait != nil {
		n.Wait(d)
		return
	}
	clock.Sleep(ctx, d)
}

// unenforced is one difference between what the kernel enforces for a pod and what it should enforce.
type unenforced struct {
	pod    string
	closed bool
	opens  bool
	text   string // if closed is false
}

// unenforced examines all pods of this node. enforced reports whether the kernel has any policy.
func (n *Node) unenforced() (wrong []unenforced, enforced bool, err error) {
	err = enforce.WithView(n.Kernel.NFT, func(v *enforce.View) error {
		wrong, enforced = nil, v.Enforced()
		for _, r := range n.records() {
			if r.Policed == nil || !n.Kernel.Lives(r) {
				continue
			}
			list, err := n.unenforcedFor(v, r)
			if err != nil {
				return err
			}
			wrong = append(wrong, list...)
		}
		return nil
	})
	return wrong, enforced, err
}

// unenforcedFor examines one pod. The caller reports a mirror that cannot be read.
func (n *Node) unenforcedFor(v *enforce.View, r *record.Record) (wrong []unenforced, err error) {
	p := r.Policed
	decision, readErr := mirror.Read(n.Paths, mirror.Pod{Namespace: p.Namespace, Name: p.Name, UID: p.UID})
	name := p.Namespace + "/" + p.Name
	for _, a := range p.Addrs {
		var diffs []enforce.Difference
		if readErr == nil {
			if diffs, err = v.Differences(a, &decision); err != nil {
				return nil, err
			}
		}
		for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
			closed, err := v.Closed(a, d)
			if err != nil {
				return nil, err
			}
			wrong = append(wrong, side(name, d, closed, diffs)...)
		}
	}
	return wrong, nil
}

// side returns what is wrong in one direction. If the pod is closed, that is the only finding.
func side(pod string, d policy.Direction, closed bool, diffs []enforce.Difference) (wrong []unenforced) {
	if closed {
		return []unenforced{{pod: pod, closed: true}}
	}
	for _, diff := range diffs {
		if diff.Direction == d {
			wrong = append(wrong, unenforced{pod: pod, opens: diff.Opens, text: fmt.Sprintf("%s: %s", d, diff.Text)})
		}
	}
	return wrong
}

// enforcement turns what is wrong into findings.
func (n *Node) enforcement(wrong []unenforced) (found []Finding) {
	var closed, pods []string
	texts := make(map[string]string) // the first of each pod
	opens := false
	for _, u := range wrong {
		switch {
		case u.closed:
			closed = append(closed, u.pod)
		case texts[u.pod] == "":
			texts[u.pod] = u.pod + ", " + u.text
			pods = append(pods, texts[u.pod])
		}
		opens = opens || u.opens
	}
	slices.Sort(closed)
	closed = slices.Compact(closed)
	switch {
	case mirror.Unknown(n.Paths):
		found = append(found, unknown(closed))
	case len(closed) > 0:
		found = append(found, n.stillClosed(closed))
	}
	const fix = "see the log of patchbayd node, which loads what the mirror has; patchbay why names the policies that a packet meets"
	switch {
	case opens:
		found = append(found, problem(fmt.Sprintf("the kernel lets pass what network policies deny: %s", some(pods)), fix))
	case len(pods) > 0:
		found = append(found, warning(fmt.Sprintf("the kernel enforces network policies that the mirror does not have: %s", some(pods)), fix))
	}
	return found
}

// unknown returns the finding for a node on which the policies were never known.
func unknown(closed []string) Finding {
	what := "new pods are isolated, because the network policies of the cluster are not known on this node yet"
	if len(closed) > 0 {
		what += fmt.Sprintf(": %d pods so far, %s", len(closed), some(closed))
	}
	return problem(what, "see that patchbayd node runs, that the API server answers, and that the agent's role may list policies, pods, namespaces and nodes; with --policy-unknown=open such pods start without policies")
}

// stillClosed returns the finding for pods that are closed since their ADD.
func (n *Node) stillClosed(pods []string) Finding {
	what := fmt.Sprintf("%d pods with a network policy are closed since their ADD: %s", len(pods), some(pods))
	if mirror.AgentRuns(n.Paths) {
		return problem(what+"; the agent runs, and has not opened them", "see the log of patchbayd node: it cannot load the policies, or does not know these pods")
	}
	return problem(what+"; only the agent opens them, and none runs that has loaded the policies", "start patchbayd node; if it runs, its log says why it cannot load them")
}

// ipvs finds a kube-proxy whose Services go around policies.
func (n *Node) ipvs() []Finding {
	if _, err := n.Host.Link(enforce.IPVSLink); nl.IsNotFound(err) {
		return nil
	}
	return []Finding{problem(enforce.Bypassed, enforce.Unbypassed)}
}

// bridgedPast finds networks with policies whose containers reach each other on a bridge, without the
// hook forward.
func (n *Node) bridgedPast() (found []Finding) {
	keys := map[bool]string{false: "net/bridge/bridge-nf-call-iptables", true: "net/bridge/bridge-nf-call-ip6tables"}
	for _, name := range n.networksWith("bridge") {
		if !slices.Contains(n.networksWith("policy"), name) {
			continue
		}
		for _, v6 := range n.families(name) {
			if on, _ := n.sysctlNumber(keys[v6]); on != 1 {
				found = append(found, problem(fmt.Sprintf("network policies do not judge packets between two containers on the bridge of network %s: %s is not 1", name, keys[v6]),
					"modprobe br_netfilter, a file in /etc/modules-load.d, and %s", setBy(keys[v6], "1")))
				break
			}
		}
	}
	return found
}

// families returns for which families a network has subnets, by v6. If they are not known, it may
// have both.
func (n *Node) families(network string) (list []bool) {
	for _, net := range n.Networks {
		if net.Name != network {
			continue
		}
		for _, p := range net.subnets() {
			if v6 := p.Addr().Is6(); !slices.Contains(list, v6) {
				list = append(list, v6)
			}
		}
	}
	if len(list) == 0 {
		return []bool{false, true}
	}
	return list
}
