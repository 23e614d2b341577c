// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/spec"
)

// identity is what a host keeps across reboots and changes of its name or addresses.
type identity struct {
	ID string `json:"id"` // 16 hexadecimal digits
}

const identityFile = "node.json"

// loadIdentity reads this host's identity, or creates it on the first start. A file that
// cannot be read is an error: under a new id the host would abandon its blocks.
func loadIdentity(dir string) (*identity, error) {
	self, err := readIdentity(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return newIdentity(filepath.Join(dir, identityFile))
	}
	return self, err
}

// readIdentity creates nothing. The error is fs.ErrNotExist if no agent has run here.
func readIdentity(dir string) (*identity, error) {
	path := filepath.Join(dir, identityFile)
	data, err := durable.Read(path)
	if err != nil {
		return nil, fmt.Errorf("read the host's identity: %w", err)
	}
	self := &identity{}
	if err := json.Unmarshal(data, self); err != nil {
		return nil, fmt.Errorf("read the host's identity: %s: %w", path, err)
	}
	if spec.ValidateContainerID(self.ID) != nil {
		return nil, fmt.Errorf("read the host's identity: %s: %q is not an id", path, self.ID)
	}
	return self, nil
}

func newIdentity(path string) (*identity, error) {
	self := &identity{ID: random(8)}
	data, err := json.Marshal(self)
	if err != nil {
		return nil, fmt.Errorf("encode the host's identity: %w", err)
	}
	return self, durable.WriteDurable(path, data, 0o600)
}

// random returns n random bytes as hexadecimal digits.
func random(n int) string {
	b := make([]byte, n)
	rand.Read(b)
	return hex.EncodeToString(b)
}
