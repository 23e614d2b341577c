// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

const (
	policyPlugin = "policy"
	withPolicy   = "fastPath and the plugin policy exclude each other: packets of established connections would bypass the network policies"
	noBridge     = "fastPath needs a bridge that has the container's gateway: other links would have to join the flowtable at each ADD"
)

// fastPathInList refuses a list in which fastPath cannot work.
func (c *Conf) fastPathInList(in *plugin.InList) error {
	switch {
	case !c.FastPath || in == nil:
		return nil
	case slices.Contains(in.Types, policyPlugin):
		return spec.Invalid(withPolicy)
	case in.Main != "" && in.Main != "bridge":
		return spec.Invalid(noBridge)
	}
	return nil
}

// planFastPath plans the fast path between the container's bridge and the uplinks. It refuses what
// cannot work.
func (p *plan) planFastPath(r *plugin.Request, env *netstate.Env) error {
	k := kernel.Of(r)
	bridge, has := hostBridge(r, env)
	gateway := func(ip spec.IPConfig) bool { return slices.ContainsFunc(has, ip.Address.Masked().Contains) }
	switch {
	case k.Records.Exists(r.Network, r.Owner, policyPlugin):
		return spec.Invalid(withPolicy)
	case bridge == "" || !slices.ContainsFunc(r.Prev().IPs, gateway):
		return spec.Invalid(noBridge)
	case k.Records.HasHolder(record.InternalFact(bridge)):
		return spec.Invalid("fastPath has no use on bridge %q: it belongs to an internal network", bridge)
	}
	if !k.Records.HasHolder(record.FastPathFact(bridge)) { // if the bridge already has a fast path, the plugin policy has refused such pods
		if err := p.refusePolicies(k, bridge); err != nil {
			return err
		}
		p.newFastPath = bridge
	}
	if err := offloads(k.NFT); err != nil {
		return err
	}
	links, err := uplinks(env.Host)
	if err != nil {
		return err
	}
	p.flows = flows(bridge, p.network, slices.DeleteFunc(links, func(l string) bool { return l == bridge }))
	if len(p.flows) == 0 && r.Verb == spec.Add {
		kernel.Warn(r, errors.New("fastPath has no effect for this container: the host has no default route"))
	}
	return nil
}

// refusePoliciesSince repeats the check once the plugin policy can see the fast path, because the ADD of a pod with
// policies may run at the same time. Either this ADD sees the pod's record, or the pod's ADD sees the fast path.
func (p *plan) refusePoliciesSince(k *kernel.Kernel) error {
	if p.newFastPath == "" {
		return nil
	}
	return p.refusePolicies(k, p.newFastPath)
}

// refusePolicies returns an error if a pod of another network on the bridge has network policies.
func (p *plan) refusePolicies(k *kernel.Kernel, bridge string) error {
	pods, torn, err := k.Records.ScanPlugin(policyPlugin)
	if len(torn) > 0 {
		err = torn[0].Err
	}
	if err != nil {
		return spec.Errorf(spec.CodeInternal, "fastPath: see which pods on bridge %s have network policies: %w", bridge, err)
	}
	for _, pod := range pods {
		if k.Lives(pod) && p.sharesBridge(k, bridge, pod) {
			return spec.Invalid("fastPath cannot be used on bridge %s: container %s of network %s has network policies, which packets of established connections would not pass", bridge, pod.ContainerID, pod.Network)
		}
	}
	return nil
}

// sharesBridge reports whether a pod with policies is on the bridge: its record of the plugin bridge says so, or it has an
// address in a subnet of this network.
func (p *plan) sharesBridge(k *kernel.Kernel, bridge string, pod *record.Record) bool {
	if rec, err := k.Records.Read(pod.Network, pod.Owner, "bridge"); err == nil && rec != nil && rec.Bridge == bridge {
		return true
	}
	return pod.Policed != nil && slices.ContainsFunc(pod.Policed.Addrs, func(a netip.Addr) bool {
		return slices.ContainsFunc(p.subnets, func(s netip.Prefix) bool { return s.Contains(a) })
	})
}

// offloads returns an error if the kernel has no fast path.
func offloads(fw *nft.Conn) error {
	err := fw.TryFastPath()
	if errors.Is(err, nft.ErrNoFastPath) {
		return spec.Errorf(spec.CodeNotAvailable, "fastPath: %w", err).
			WithDetails("run modprobe nf_flow_table_inet and modprobe nft_flow_offload, or remove fastPath: everything else works without it")
	}
	return err
}

// uplinks returns the links of the host's best IPv4 and IPv6 default routes.
func uplinks(host *nl.Conn) (names []string, err error) {
	for _, family := range [...]int{unix.AF_INET, unix.AF_INET6} {
		index, err := host.DefaultLink(family, true)
		if err != nil {
			return nil, fmt.Errorf("look for the default route: %w", err)
		}
		if index == 0 {
			continue
		}
		link, err := host.LinkAt(index)
		if err != nil {
			return nil, err
		}
		if name := link.Attrs().Name; !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names, nil
}

// flows returns the facts of the fast path: one of the bridge, and one for each uplink, because the
// uplinks may change while containers run.
func flows(bridge, network string, uplinks []string) (facts []record.Fact) {
	for _, up := range uplinks {
		facts = append(facts, record.Fact{
			Name:     record.FastPathFact(bridge) + "/" + up, // no name of a link has a slash
			Elements: []nft.Element{nft.FastPath(bridge, up, network)},
			FastPath: []string{bridge, up},
		})
	}
	if len(facts) > 0 {
		facts = append(facts, record.Fact{Name: record.FastPathFact(bridge), FastPath: []string{bridge}})
	}
	return facts
}

// flowsAsAttached plans the fast path to the uplinks that the host had at the ADD.
func (p *plan) flowsAsAttached(k *kernel.Kernel, rec *record.Record) {
	if !p.conf.FastPath {
		return
	}
	p.flows = nil
	for _, name := range rec.Shared {
		if f, err := k.Records.Fact(name); err == nil && strings.HasPrefix(name, record.FastPathFact("")) {
			p.flows = append(p.flows, f)
		}
	}
}
