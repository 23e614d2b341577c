// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package sight is what `patchbay drops` and `patchbay flows` share: the ends of packets, and how a command asks the agent
// of the node. The agent listens on Unix sockets that only root may use. A client sends a request as a line of JSON, and
// gets a line of JSON for each thing that the agent has to say.
package sight

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"path/filepath"
)

// Socket returns the path of a socket of the agent, in the directory of records (paths.Paths.Run). `patchbayd node clean`
// removes it.
func Socket(run, name string) string { return filepath.Join(run, "node", name) }

// End is one end of a packet or of a connection. At most one of Pod, Container and Node is set.
type End struct {
	Address   netip.Addr `json:"address"`
	Pod       string     `json:"pod,omitempty"`       // namespace/name
	Container string     `json:"container,omitempty"` // where nothing but an id or podman's name is known
	Node      string     `json:"node,omitempty"`      // a machine that has the address itself
}

// Name returns the name of what has the address, or "" if it is not known.
func (e End) Name() string { return cmp.Or(e.Pod, e.Container, e.Node) }

// String returns "shop/web 10.1.0.5".
func (e End) String() string {
	if name := e.Name(); name != "" {
		return name + " " + e.Address.String()
	}
	return e.Address.String()
}

// Is reports whether a user means an end with a word.
func (e End) Is(word string) bool { return word == e.Name() || word == e.Address.String() }

// ErrDial means that no agent listens.
var ErrDial = errors.New("no agent that tells what it sees runs on this node")

// Ask sends a request, and calls each with every line of the agent, until the agent has said all, each returns an error, or
// ctx ends. If no process listens at the path, the error wraps ErrDial.
func Ask[L any](ctx context.Context, path string, request any, each func(L) error) error {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDial, err)
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() }) //nolint:errcheck // it ends the reading
	defer func() {
		if stop() {
			conn.Close() //nolint:errcheck // nothing more is written
		}
	}()
	if err := json.NewEncoder(conn).Encode(request); err != nil {
		return fmt.Errorf("ask the agent: %w", err)
	}
	for in := json.NewDecoder(conn); ; {
		var line L
		err := in.Decode(&line)
		switch {
		case ctx.Err() != nil, errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("read what the agent says: %w", err)
		}
		if err := each(line); err != nil && ctx.Err() == nil {
			return err
		}
	}
}
