// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policytest

import (
	"github.com/patchbay-net/patchbay/internal/test/policytest/api"
)

// onAnyPort tells whether a rule's ports include the probe's. A rule without ports includes every
// port of every protocol, also of protocols without ports.
func (c Cluster) onAnyPort(p Probe, ports []api.NetworkPolicyPort) bool {
	if len(ports) == 0 {
		return true
	}
	for _, port := range ports {
		if protocolOf(port.Protocol) == p.Protocol && c.isPort(p, port) {
			return true
		}
	}
	return false
}

func protocolOf(protocol *api.Protocol) api.Protocol {
	if protocol == nil {
		return api.ProtocolTCP
	}
	return *protocol
}

// isPort compares the port, if the protocol is the same. A name is a port of the probe's
// destination, in both directions.
func (c Cluster) isPort(p Probe, port api.NetworkPolicyPort) bool {
	switch {
	case port.Port == nil:
		return true
	case port.Port.StrVal != "":
		return c.isNamed(p, port.Port.StrVal)
	case port.EndPort != nil:
		return port.Port.IntVal <= p.Port && p.Port <= *port.EndPort
	default:
		return port.Port.IntVal == p.Port
	}
}

// isNamed tells whether the probe's destination is a pod that has a port of this name, with the
// probe's protocol and number.
func (c Cluster) isNamed(p Probe, name string) bool {
	pod := c.podAt(p.To)
	if pod == nil {
		return false
	}
	for _, port := range portsOf(pod) {
		if port.Name == name && port.ContainerPort == p.Port && containerProtocol(port) == p.Protocol {
			return true
		}
	}
	return false
}

// portsOf returns the ports of all containers that run as long as the pod.
func portsOf(pod *api.Pod) []api.ContainerPort {
	var ports []api.ContainerPort
	for _, container := range pod.Spec.Containers {
		ports = append(ports, container.Ports...)
	}
	for _, container := range pod.Spec.InitContainers {
		if container.RestartPolicy != nil && *container.RestartPolicy == api.ContainerRestartPolicyAlways {
			ports = append(ports, container.Ports...)
		}
	}
	return ports
}

func containerProtocol(port api.ContainerPort) api.Protocol {
	if port.Protocol == "" {
		return api.ProtocolTCP
	}
	return port.Protocol
}
