// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"text/tabwriter"

	"github.com/patchbay-net/patchbay/daemons/docker/state"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/terminal"
)

// PS lists the endpoints in the state below base, with facts that `docker ps` does not show. It
// prints a table, or an array of objects with full ids. It works even if no driver is running.
func PS(w io.Writer, base string, asJSON bool) error {
	list := []endpointJSON{}
	var unread error
	if state.Used(base, "docker") {
		store, err := state.Open(base, "docker")
		if err != nil {
			return err
		}
		var all []*state.Endpoint
		all, unread = store.Endpoints.List()
		for _, e := range all {
			list = append(list, jsonOf(store, e))
		}
	}
	if asJSON {
		out := json.NewEncoder(w)
		out.SetIndent("", "    ")
		return errors.Join(unread, out.Encode(list))
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "ENDPOINT\tCONTAINER\tNETWORK\tPHASE\tADDRESSES\tPORTS") //nolint:errcheck // Flush returns the error
	for _, e := range list {
		addrs := strings.ReplaceAll(strings.Trim(fmt.Sprint(e.Addresses), "[]"), " ", ",")
		name := cmp.Or(e.Container, short(e.ContainerID, 12), "-")
		fmt.Fprintf(t, "%.12s\t%s\t%s\t%s\t%s\t%s\n", e.ID, terminal.Printable(name), terminal.Printable(e.Network), e.Phase, cmp.Or(addrs, "-"), cmp.Or(e.published.String(), "-")) //nolint:errcheck // as above
	}
	return errors.Join(unread, t.Flush())
}

// endpointJSON is the form of an endpoint in JSON. Its ports have the keys of CNI's
// portMappings.
type endpointJSON struct {
	ID          string       `json:"endpointID"`
	ContainerID string       `json:"containerID,omitempty"`
	Container   string       `json:"container,omitempty"` // the container's name
	Network     string       `json:"network"`
	Phase       string       `json:"phase"`
	Addresses   []netip.Addr `json:"addresses"`
	Ports       []portJSON   `json:"ports"`

	published portList
}

type portJSON struct {
	HostPort      uint16     `json:"hostPort"`
	ContainerPort uint16     `json:"containerPort"`
	Protocol      string     `json:"protocol"`
	HostIP        netip.Addr `json:"hostIP,omitzero"`
}

func jsonOf(dir *state.Dir, e *state.Endpoint) endpointJSON {
	out := endpointJSON{
		ID: e.ID, ContainerID: e.Container, Container: e.Name, Network: networkOf(dir, e), Phase: phaseOf(e),
		Addresses: []netip.Addr{}, Ports: []portJSON{}, published: e.Published,
	}
	if e.Kernel != nil {
		for _, a := range e.Kernel.Addrs {
			out.Addresses = append(out.Addresses, a.Addr())
		}
	}
	for _, p := range e.Published {
		out.Ports = append(out.Ports, portJSON{p.HostPort, p.Port, nft.ProtocolName(p.Proto), p.HostIP})
	}
	return out
}

// publisher returns the name or the id of the container that has a port. If that is not known,
// it returns the endpoint's id.
func publisher(e *state.Endpoint) string {
	return cmp.Or(e.Name, short(e.Container, 12), "endpoint "+short(e.ID, 12))
}

// phaseOf returns the phase. If the driver has set the container's link down, it returns
// "failed", because nothing else shows this.
func phaseOf(e *state.Endpoint) string {
	if e.Closed {
		return "failed"
	}
	return string(e.Phase)
}

// networkOf returns the name of the CNI network. Docker does not send the name of its own network.
func networkOf(dir *state.Dir, e *state.Endpoint) string {
	n, err := dir.Networks.Get(e.Network)
	if err != nil {
		return short(e.Network, 12)
	}
	return cmp.Or(n.Options[optNetwork], short(e.Network, 12))
}
