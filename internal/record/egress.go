// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/lightjson"
	"github.com/patchbay-net/patchbay/internal/paths"
)

// Egress has the source addresses that the agent of a Kubernetes node chose for packets of a
// namespace's pods that leave the node. Each namespace has its own file, so an ADD opens only one
// file, which in most cases does not exist. The directory is in the agent's directory, and survives
// a reboot.
type Egress struct {
	Schema int          `json:"schema"`
	Wanted string       `json:"wanted"` // as the namespace's annotation says
	Use    []netip.Addr `json:"use"`    // those that the node has: at most one of each family
}

// EgressSchema is the version of the format. This program does not use a newer one.
const EgressSchema = 1

// EgressDir is the directory of these files.
func EgressDir(p paths.Paths) string { return filepath.Join(p.State, "node", "egress") }

// EgressOf returns the addresses of a namespace, whose name must be valid. If there is no file, it
// returns the zero value.
func EgressOf(p paths.Paths, namespace string) (e Egress, err error) {
	path := filepath.Join(EgressDir(p), namespace)
	data, err := durable.Read(path)
	if errors.Is(err, fs.ErrNotExist) {
		return e, nil
	}
	if err == nil {
		err = lightjson.Unmarshal(data, &e)
	}
	if err == nil && e.Schema != EgressSchema {
		err = fmt.Errorf("schema %d; this program reads %d", e.Schema, EgressSchema)
	}
	if err != nil {
		return Egress{}, fmt.Errorf("read the egress addresses of namespace %s, %s: %w", namespace, path, err)
	}
	return e, nil
}
