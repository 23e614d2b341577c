// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"time"
)

// ParseNamespace reads a namespace as the API serves it.
func ParseNamespace(text []byte) (Namespace, error) {
	var o object
	if err := json.Unmarshal(text, &o); err != nil {
		return Namespace{}, fmt.Errorf("read a namespace: %w", err)
	}
	return Namespace{Name: o.Metadata.Name, Labels: o.Metadata.Labels}, nil
}

// apiPod has those fields of the API's pod that count here.
type apiPod struct {
	Metadata struct {
		Namespace, Name   string
		UID               string
		Labels            Labels
		CreationTimestamp time.Time
		DeletionTimestamp *time.Time
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

// ParsePod reads a pod as the API serves it.
func ParsePod(text []byte) (Pod, error) {
	var o apiPod
	if err := json.Unmarshal(text, &o); err != nil {
		return Pod{}, fmt.Errorf("read a pod: %w", err)
	}
	m := o.Metadata
	p := Pod{
		Namespace: m.Namespace, Name: m.Name, UID: m.UID, Node: o.Spec.NodeName, Labels: m.Labels, Ports: o.ports(),
		Phase: o.Status.Phase, HostNetwork: o.Spec.HostNetwork, Leaving: m.DeletionTimestamp != nil, Created: m.CreationTimestamp,
	}
	ips := o.Status.PodIPs
	if len(ips) == 0 && o.Status.PodIP != "" {
		ips = []struct{ IP string }{{o.Status.PodIP}}
	}
	for _, ip := range ips {
		a, err := netip.ParseAddr(ip.IP)
		if err != nil {
			return p, fmt.Errorf("read pod %s: %w", p.path(), err)
		}
		p.Addresses = append(p.Addresses, a.Unmap())
	}
	return p, nil
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
			if proto, err := protocol(p.Protocol); err == nil && p.Name != "" {
				ports = append(ports, Port{p.Name, proto, p.ContainerPort})
			}
		}
	}
	return ports
}
