// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policytest

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/patchbay-net/patchbay/internal/test/policytest/api"
)

// Shape bounds the clusters of a generator.
type Shape struct {
	Namespaces, Nodes, Pods, Policies, ClusterPolicies int
}

// Small is a shape in which every object can concern every other.
var Small = Shape{Namespaces: 3, Nodes: 2, Pods: 8, Policies: 5, ClusterPolicies: 4}

// Generator draws clusters. Labels, ports and addresses come from few values, so that selectors,
// rules and blocks often match, and often nearly match.
type Generator struct {
	*rand.Rand
	Cluster
	shape  Shape
	serial int // addresses of pods so far
}

// NewGenerator returns a generator with a first cluster. The seed determines all that it draws.
func NewGenerator(seed uint64, shape Shape) *Generator {
	g := &Generator{Rand: rand.New(rand.NewPCG(seed, 0)), shape: shape}
	for range shape.Nodes {
		g.addNode()
	}
	for range 1 + g.IntN(shape.Namespaces) {
		g.addNamespace()
	}
	for range 2 + g.IntN(shape.Pods-1) {
		g.addPod()
	}
	for range max(g.IntN(shape.Policies+1), g.IntN(shape.Policies+1)) {
		g.addPolicy()
	}
	if shape.ClusterPolicies > 0 && g.chance(50) {
		for range 1 + g.IntN(shape.ClusterPolicies) {
			g.addClusterPolicy()
		}
	}
	return g
}

func (g *Generator) chance(percent int) bool { return g.IntN(100) < percent }

// pick returns one of the values.
func pick[T any](g *Generator, values ...T) T { return values[g.IntN(len(values))] }

// freeName returns the first name that is free. A namespace's objects have the names of another's,
// and a new object often has the name of one that was removed.
func freeName(prefix string, taken func(name string) bool) string {
	for n := 1; ; n++ {
		if name := fmt.Sprint(prefix, n); !taken(name) {
			return name
		}
	}
}

// labels are the same for pods, namespaces and nodes: an engine that looks at the wrong object
// finds the right key.
func (g *Generator) labels() map[string]string {
	labels := map[string]string{}
	for _, key := range []string{"app", "tier"} {
		if g.chance(60) {
			labels[key] = pick(g, "x", "y")
		}
	}
	return labels
}

func (g *Generator) addNode() {
	n := len(g.Nodes) + 1
	g.Nodes = append(g.Nodes, api.Node{
		ObjectMeta: api.ObjectMeta{Name: fmt.Sprintf("node%d", n), Labels: g.labels()},
		Spec:       api.NodeSpec{PodCIDRs: []string{fmt.Sprintf("10.250.%d.0/24", n), fmt.Sprintf("fd02:0:0:%x::/64", n)}},
		Status:     api.NodeStatus{Addresses: nodeAddresses(fmt.Sprintf("node%d", n), n)},
	})
}

func nodeAddresses(name string, n int) []api.NodeAddress {
	return []api.NodeAddress{
		{Type: api.NodeHostName, Address: name},
		{Type: api.NodeInternalIP, Address: fmt.Sprintf("192.168.0.%d", n)},
		{Type: api.NodeInternalIP, Address: fmt.Sprintf("fd01::%x", n)},
	}
}

func (g *Generator) addNamespace() {
	name := freeName("ns", func(name string) bool { return g.labelsOf(name) != nil })
	ns := api.Namespace{ObjectMeta: api.ObjectMeta{Name: name, Labels: g.labels()}}
	ns.Labels[api.LabelMetadataName] = ns.Name
	g.Namespaces = append(g.Namespaces, ns)
}

func (g *Generator) addPod() {
	namespace := g.namespace()
	name := freeName("pod", func(name string) bool {
		return slices.ContainsFunc(g.Pods, func(p api.Pod) bool { return p.Namespace == namespace && p.Name == name })
	})
	pod := api.Pod{ObjectMeta: api.ObjectMeta{Name: name, Namespace: namespace, Labels: g.labels()}}
	node := pick(g, g.Nodes...)
	pod.Spec.NodeName = node.Name
	pod.Status.Phase = g.phase()
	switch {
	case g.chance(10):
		pod.Spec.HostNetwork = true
		pod.Status.PodIPs = hostIPs(node)
	case g.chance(92):
		pod.Status.PodIPs = g.podIPs(finished(&pod))
	}
	if g.chance(10) {
		since := time.Unix(1767225600, 0).UTC()
		pod.DeletionTimestamp = &since
	}
	g.giveContainers(&pod)
	g.Pods = append(g.Pods, pod)
}

func (g *Generator) namespace() string { return pick(g, g.Namespaces...).Name }

func (g *Generator) phase() api.PodPhase {
	if g.chance(85) {
		return pick(g, api.PodRunning, api.PodRunning, api.PodRunning, api.PodPending, api.PodUnknown)
	}
	return pick(g, api.PodSucceeded, api.PodFailed)
}

func hostIPs(node api.Node) []api.PodIP {
	var ips []api.PodIP
	for _, a := range node.Status.Addresses {
		if a.Type == api.NodeInternalIP {
			ips = append(ips, api.PodIP{IP: a.Address})
		}
	}
	return ips
}

// podIPs returns addresses of both families, or of one. Those of a pod that has finished are
// often in use again; those of another pod may be of a pod that has finished.
func (g *Generator) podIPs(finished bool) []api.PodIP {
	if used := g.reusable(finished); len(used) > 0 && g.chance(60) {
		return []api.PodIP{{IP: pick(g, used...)}}
	}
	n := g.freeNumber()
	both := []api.PodIP{{IP: podIPv4(n)}, {IP: podIPv6(n)}}
	switch {
	case g.chance(10):
		return both[:1]
	case g.chance(10):
		return both[1:]
	default:
		return both
	}
}

// freeNumber returns the number of two addresses that no pod has: new ones, or the first that are
// free, which may be those of a pod that was just removed.
func (g *Generator) freeNumber() int {
	if g.chance(50) {
		g.serial++
		return g.serial
	}
	used := map[string]bool{}
	for _, addr := range g.Addresses() {
		used[addr.String()] = true
	}
	for n := 1; ; n++ {
		if !used[podIPv4(n)] && !used[podIPv6(n)] {
			g.serial = max(g.serial, n)
			return n
		}
	}
}

func podIPv4(n int) string { return fmt.Sprintf("10.0.%d.%d", n/200, 1+n%200) }
func podIPv6(n int) string { return fmt.Sprintf("fd00::%x", 1+n) }

// reusable returns addresses that another pod has or had: for a finished pod, of pods that live;
// for a pod that lives, of finished pods, if no other object has them.
func (g *Generator) reusable(byFinished bool) []string {
	var ips []string
	for i := range g.Pods {
		pod := &g.Pods[i]
		if pod.Spec.HostNetwork || finished(pod) == byFinished {
			continue
		}
		for _, ip := range pod.Status.PodIPs {
			if byFinished || g.podAt(netip.MustParseAddr(ip.IP)) == nil {
				ips = append(ips, ip.IP)
			}
		}
	}
	return ips
}

// giveContainers draws named ports. A name can occur twice in a pod if the protocols differ.
func (g *Generator) giveContainers(pod *api.Pod) {
	pod.Spec.Containers = []api.Container{{Name: "main"}}
	taken := map[string]bool{}
	for range g.IntN(4) {
		port := api.ContainerPort{Name: g.portName(), ContainerPort: g.port(), Protocol: pick(g, "", api.ProtocolTCP, api.ProtocolUDP, api.ProtocolSCTP)}
		if key := port.Name + string(containerProtocol(port)); !taken[key] {
			taken[key] = true
			g.giveContainer(pod, port)
		}
	}
}

func (g *Generator) giveContainer(pod *api.Pod, port api.ContainerPort) {
	container := api.Container{Name: fmt.Sprintf("c%d", len(pod.Spec.Containers)+len(pod.Spec.InitContainers)), Ports: []api.ContainerPort{port}}
	switch always := api.ContainerRestartPolicyAlways; {
	case g.chance(15):
		container.RestartPolicy = &always
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, container)
	case g.chance(15):
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, container)
	default:
		pod.Spec.Containers = append(pod.Spec.Containers, container)
	}
}

func (g *Generator) portName() string { return pick(g, "http", "dns") }

// port returns one of the ports that probes try.
func (g *Generator) port() int32 { return pick(g, ports...) }
