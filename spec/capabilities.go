// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"encoding/json"
	"net/netip"

	"github.com/patchbay-net/patchbay/internal/lightjson"
)

// Capabilities are the values that a runtime has for one attachment. Each plugin gets those that it declares in
// its "capabilities", as its "runtimeConfig"; a plugin can decode its runtimeConfig into a Capabilities. The names
// are those of CONVENTIONS.md of containernetworking/cni, "Well-known Capabilities".
type Capabilities struct {
	PortMappings   []PortMapping `json:"portMappings,omitempty"`
	IPRanges       [][]IPRange   `json:"ipRanges,omitempty"` // a list of ranges for each address, which comes from one of them
	Bandwidth      Bandwidth     `json:"bandwidth,omitzero"`
	DNS            CapabilityDNS `json:"dns,omitzero"`
	IPs            []string      `json:"ips,omitempty"` // addresses; plugins such as static need the prefix length, too
	MAC            string        `json:"mac,omitempty"`
	InfinibandGUID string        `json:"infinibandGUID,omitempty"`
	DeviceID       string        `json:"deviceID,omitempty"` // such as 0000:04:00.5
	Aliases        []string      `json:"aliases,omitempty"`  // names of the container on this network
	CgroupPath     string        `json:"cgroupPath,omitempty"`
}

// PortMapping publishes a port of the container.
type PortMapping struct {
	HostPort      uint16     `json:"hostPort"`
	ContainerPort uint16     `json:"containerPort"`
	Protocol      string     `json:"protocol"` // tcp, udp or sctp
	HostIP        netip.Addr `json:"hostIP,omitzero"`
}

// IPRange is a range of addresses, as host-local has them. Only Subnet is required.
type IPRange struct {
	Subnet     netip.Prefix `json:"subnet"`
	RangeStart netip.Addr   `json:"rangeStart,omitzero"`
	RangeEnd   netip.Addr   `json:"rangeEnd,omitzero"`
	Gateway    netip.Addr   `json:"gateway,omitzero"`
}

// Bandwidth limits what the container receives (ingress) and sends. Rates are in bits a second, bursts in bits.
type Bandwidth struct {
	IngressRate  uint64 `json:"ingressRate,omitempty"`
	IngressBurst uint64 `json:"ingressBurst,omitempty"`
	EgressRate   uint64 `json:"egressRate,omitempty"`
	EgressBurst  uint64 `json:"egressBurst,omitempty"`
}

// CapabilityDNS is the DNS that a runtime chose for the container. Its keys differ from those of a result's DNS.
type CapabilityDNS struct {
	Servers  []string `json:"servers,omitempty"`
	Searches []string `json:"searches,omitempty"`
	Options  []string `json:"options,omitempty"`
}

// Map returns those values that are set, by the names of their capabilities. The caller may add others, such as
// io.kubernetes.cri.pod-annotations.
func (c Capabilities) Map() map[string]any {
	data, err := lightjson.Marshal(c)
	if err != nil {
		panic("spec: encode capabilities: " + err.Error()) // cannot fail: c is plain data
	}
	var raw map[string]json.RawMessage // keeps large numbers as they are
	if err := lightjson.Unmarshal(data, &raw); err != nil {
		panic("spec: encode capabilities: " + err.Error())
	}
	out := make(map[string]any, len(raw))
	for name, value := range raw {
		out[name] = value
	}
	return out
}
