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
	"slices"
	"text/tabwriter"

	"github.com/patchbay-net/patchbay/docker/state"
	"github.com/patchbay-net/patchbay/internal/terminal"
)

// PS lists the endpoints in the state below base, with facts that `docker ps` does not
// show. It works without a running driver.
func PS(w io.Writer, base string) error {
	store, all, err := look(base)
	if store == nil && err != nil {
		return err
	}
	slices.SortFunc(all, func(a, b *state.Endpoint) int { return cmp.Compare(a.ID, b.ID) })
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "ENDPOINT\tCONTAINER\tNETWORK\tPHASE\tADDRESSES\tPORTS") //nolint:errcheck // Flush returns the error
	for _, e := range all {
		fmt.Fprintf(t, "%.12s\t%s\t%s\t%s\t%s\t%s\n", e.ID, terminal.Printable(containerOf(e)), terminal.Printable(networkOf(store, e)), phaseOf(e), addressesOf(e), orDash(Ports(e.Published).String())) //nolint:errcheck // as above
	}
	return errors.Join(err, t.Flush())
}

// PSJSON is PS as an array of objects, with full ids.
func PSJSON(w io.Writer, base string) error {
	store, all, err := look(base)
	if store == nil && err != nil {
		return err
	}
	slices.SortFunc(all, func(a, b *state.Endpoint) int { return cmp.Compare(a.ID, b.ID) })
	list := make([]endpointJSON, len(all))
	for i, e := range all {
		list[i] = jsonOf(store, e)
	}
	out := json.NewEncoder(w)
	out.SetIndent("", "    ")
	return errors.Join(err, out.Encode(list))
}

// endpointJSON is an endpoint for programs. Ports have the key names of CNI's
// portMappings.
type endpointJSON struct {
	ID          string       `json:"endpointID"`
	ContainerID string       `json:"containerID,omitempty"`
	Container   string       `json:"container,omitempty"` // its name
	Network     string       `json:"network"`
	Phase       string       `json:"phase"`
	Addresses   []netip.Addr `json:"addresses"`
	Ports       []portJSON   `json:"ports"`
}

type portJSON struct {
	HostPort      uint16     `json:"hostPort"`
	ContainerPort uint16     `json:"containerPort"`
	Protocol      string     `json:"protocol"`
	HostIP        netip.Addr `json:"hostIP,omitzero"`
}

func jsonOf(store *state.Store, e *state.Endpoint) endpointJSON {
	out := endpointJSON{
		ID: e.ID, ContainerID: e.Container, Container: e.Name, Network: networkOf(store, e), Phase: phaseOf(e),
		Addresses: []netip.Addr{}, Ports: []portJSON{},
	}
	if e.Kernel != nil {
		for _, a := range e.Kernel.Addrs {
			out.Addresses = append(out.Addresses, a.Addr())
		}
	}
	for _, p := range e.Published {
		out.Ports = append(out.Ports, portJSON{p.HostPort, p.Port, protocol(p.Proto), p.HostIP})
	}
	return out
}

// look reads the endpoints; the error names those that cannot be read.
func look(base string) (*state.Store, []*state.Endpoint, error) {
	if !state.Used(base, "docker") {
		return nil, nil, nil
	}
	store, err := state.Open(base, "docker")
	if err != nil {
		return nil, nil, err
	}
	all, err := store.Endpoints.List()
	return store, all, err
}

func containerOf(e *state.Endpoint) string {
	if e.Name != "" {
		return e.Name
	}
	return orDash(short(e.Container, 12))
}

// publisher names the container that has a port, or the endpoint while its container is
// unknown.
func publisher(e *state.Endpoint) string {
	if e.Name == "" && e.Container == "" {
		return "endpoint " + short(e.ID, 12)
	}
	return containerOf(e)
}

// phaseOf is "failed" for a container whose link was set down: nothing else shows it.
func phaseOf(e *state.Endpoint) string {
	if e.Closed {
		return "failed"
	}
	return string(e.Phase)
}

// networkOf is the name of the CNI network: Docker does not send the name of its own.
func networkOf(store *state.Store, e *state.Endpoint) string {
	n, err := store.Networks.Get(e.Network)
	if err != nil {
		return short(e.Network, 12)
	}
	if name := n.Options[optNetwork]; name != "" {
		return name
	}
	return short(e.Network, 12)
}

func addressesOf(e *state.Endpoint) string {
	if e.Kernel == nil {
		return "-"
	}
	text := ""
	for i, a := range e.Kernel.Addrs {
		if i > 0 {
			text += ","
		}
		text += a.Addr().String()
	}
	return orDash(text)
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
