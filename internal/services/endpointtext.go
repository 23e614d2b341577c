// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"unique"
)

// MarshalText returns an endpoint as the agent saves it, because a cluster has many: its address, its node (nothing if it has none) and
// a letter for each of ready, serving and terminating, with a space between them: "10.244.1.7 node-3 rs". Hints follow as JSON.
func (e SliceEndpoint) MarshalText() ([]byte, error) {
	text := e.Address.String() + " " + e.Node + " "
	for _, s := range e.states() {
		if *s.is {
			text += s.letter
		}
	}
	if e.Hints == nil {
		return []byte(text), nil
	}
	hints, err := json.Marshal(e.Hints)
	return append([]byte(text+" "), hints...), err
}

// UnmarshalText reads what MarshalText wrote.
func (e *SliceEndpoint) UnmarshalText(text []byte) (err error) {
	fields := strings.SplitN(string(text), " ", 4)
	if len(fields) < 3 {
		return fmt.Errorf("endpoint %q: want an address, a node and states", text)
	}
	if e.Address, err = netip.ParseAddr(fields[0]); err != nil {
		return fmt.Errorf("endpoint %q: %w", text, err)
	}
	e.Node = nodeName(fields[1])
	for _, s := range e.states() {
		fields[2], *s.is = strings.CutPrefix(fields[2], s.letter)
	}
	if fields[2] != "" {
		return fmt.Errorf("endpoint %q: unknown state %q", text, fields[2])
	}
	if len(fields) < 4 {
		return nil
	}
	return json.Unmarshal([]byte(fields[3]), &e.Hints)
}

type endpointState struct {
	letter string
	is     *bool
}

func (e *SliceEndpoint) states() [3]endpointState {
	return [...]endpointState{{"r", &e.Ready}, {"s", &e.Serving}, {"t", &e.Terminating}}
}

// nodeName returns a name as one string for all endpoints of the node, since many are on one.
func nodeName(name string) string { return unique.Make(name).Value() }
