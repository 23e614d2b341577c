// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package record

import "net/netip"

// Policed is a pod, or another container, to whose addresses network policies apply. Every ADD of
// plugin policy writes it, also if no policy selects the pod: the agent learns the addresses of new
// pods from it.
type Policed struct {
	Namespace string            `json:"namespace"`
	Name      string            `json:"name,omitempty"`
	UID       string            `json:"uid,omitempty"`   // as the runtime passed it; a static pod has another one in the API
	Labels    map[string]string `json:"labels,omitzero"` // from the configuration; nil for a pod, whose labels the API has
	Link      string            `json:"link,omitempty"`  // of this attachment alone, on the host, at no bridge
	Port      string            `json:"port,omitempty"`  // of a bridge, of this attachment alone
	Addrs     []netip.Addr      `json:"addrs,omitempty"`
	Checked   bool              `json:"checked,omitempty"` // the ADD had the sources of its packets checked

	Early bool `json:"early,omitempty"` // no policies were known at the ADD, so it closed the pod

	// Former are addresses of earlier ADDs of this attachment. They may still be closed, so DEL opens
	// them. No policy applies to them.
	Former []netip.Addr `json:"former,omitempty"`
}
