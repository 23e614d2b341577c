// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"time"

	"github.com/patchbay-net/patchbay/internal/l4"
)

// metadata has those fields that policies see of a namespace and of a node. Here and in apiPod, no
// type has a method UnmarshalJSON: after an error of such a method, the rest would not be read.
type metadata struct {
	Name   string
	Labels map[string]string
}

// ParseNamespace reads a namespace as the API serves it. If err is not nil, do not add the namespace
// to the State, even if it has a name: without it in the State, its labels count as unknown, and its
// pods are isolated if a policy may select them.
func ParseNamespace(text []byte) (Namespace, error) {
	var o struct{ Metadata metadata }
	if err := json.Unmarshal(text, &o); err != nil {
		return Namespace{Name: o.Metadata.Name}, fmt.Errorf("read namespace %q: %w", o.Metadata.Name, err)
	}
	return Namespace{Name: o.Metadata.Name, Labels: labelsOf(o.Metadata.Labels)}, nil
}

// ParseNode reads a node as the API serves it. A node's addresses in the API may also be names, which
// do not count here. If err is not nil and the node has a name, the rest is what can be read.
func ParseNode(text []byte) (Node, error) {
	var o struct {
		Metadata metadata
		Spec     struct{ PodCIDRs []string }
		Status   struct{ Addresses []struct{ Address string } }
	}
	err := json.Unmarshal(text, &o)
	n := Node{Name: o.Metadata.Name, Labels: labelsOf(o.Metadata.Labels)}
	for _, a := range o.Status.Addresses {
		if addr, err := netip.ParseAddr(a.Address); err == nil {
			n.Addresses = append(n.Addresses, addr.Unmap().WithZone("")) // the kernel's sets have no zones
		}
	}
	for _, text := range o.Spec.PodCIDRs {
		if p, err := parsePrefix(text); err == nil {
			n.Pods = append(n.Pods, p)
		}
	}
	if err != nil {
		return n, fmt.Errorf("read node %q: %w", n.Name, err)
	}
	return n, nil
}

// apiPod has those fields of the API's pod that count here.
type apiPod struct {
	Metadata struct {
		Namespace, Name   string
		UID               string
		Labels            map[string]string
		CreationTimestamp string
		DeletionTimestamp *string
	}
	Spec struct {
		NodeName       string
		HostNetwork    bool
		Containers     []apiContainer
		InitContainers []apiContainer
	}
	Status struct {
		Phase  string
		PodIP  string
		PodIPs []struct{ IP string }
	}
}

type apiContainer struct {
	RestartPolicy string
	Ports         []struct {
		Name          string
		Protocol      string
		ContainerPort uint16
	}
}

// ParsePod reads a pod as the API serves it. If err is not nil and the pod has a name, the rest is
// what can be read; add it to the State all the same. If anything but addresses or the time is
// missing, the pod is Unknown, so it is isolated if a policy may select or deny it.
func ParsePod(text []byte) (Pod, error) {
	var o apiPod
	err := json.Unmarshal(text, &o)
	m := o.Metadata
	p := Pod{
		Namespace: m.Namespace, Name: m.Name, UID: m.UID, Node: o.Spec.NodeName, Labels: labelsOf(m.Labels), Ports: o.ports(),
		Phase: o.Status.Phase, HostNetwork: o.Spec.HostNetwork, Leaving: m.DeletionTimestamp != nil, Unknown: err != nil,
	}
	var noTime, noAddress error
	p.Created, noTime = created(m.CreationTimestamp)
	p.Addresses, noAddress = o.addresses()
	if err = cmp.Or(err, noTime, noAddress); err != nil {
		return p, fmt.Errorf("read pod %s: %w", p.path(), err)
	}
	return p, nil
}

// created reads a creationTimestamp, which an object has only once the API server has stored it.
func created(text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	return time.Parse(time.RFC3339, text)
}

// labelsOf sorts labels. No labels are nil.
func labelsOf(m map[string]string) Labels {
	if len(m) == 0 {
		return nil
	}
	return LabelsOf(m)
}

// addresses returns the addresses that can be read, and the first error.
func (o *apiPod) addresses() (list []netip.Addr, err error) {
	ips := o.Status.PodIPs
	if len(ips) == 0 && o.Status.PodIP != "" {
		ips = []struct{ IP string }{{o.Status.PodIP}}
	}
	for _, ip := range ips {
		a, e := netip.ParseAddr(ip.IP)
		if e == nil {
			list = append(list, a.Unmap())
		} else if err == nil {
			err = e
		}
	}
	return list, err
}

// ports returns the named ports of the containers. An init container that restarts always is a
// sidecar: it runs beside them. A port with an unknown protocol has no name.
func (o *apiPod) ports() (ports []Port) {
	containers := o.Spec.Containers
	for _, c := range o.Spec.InitContainers {
		if c.RestartPolicy == "Always" {
			containers = append(containers, c)
		}
	}
	for _, c := range containers {
		for _, p := range c.Ports {
			if proto, err := l4.Parse(p.Protocol); err == nil && p.Name != "" {
				ports = append(ports, Port{p.Name, proto, p.ContainerPort})
			}
		}
	}
	return ports
}
