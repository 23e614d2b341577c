// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package wirekey keeps a host's WireGuard keys. The private key is made on the host, in a
// file that only root can read, and never leaves the host. The public key is for publishing.
// The package is separate from package mesh, because plugins link mesh and need no keys.
package wirekey

import (
	"context"
	"crypto/ecdh"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/mesh"
)

// File is the name of the key file in the directory that Open gets. The file has the private
// key as `wg genkey` prints it.
const File = "wireguard.key"

// Open returns the keys in dir and makes them if they are missing. It makes dir with mode
// 0700. To get other keys, remove the file; then the host cannot be reached until its peers
// know the new public key.
func Open(ctx context.Context, dir string) (*mesh.Keys, error) {
	if err := durable.MakeDir(dir); err != nil {
		return nil, fmt.Errorf("make WireGuard key: %w", err)
	}
	unlock, err := durable.LockDir(ctx, dir)
	if err != nil {
		return nil, fmt.Errorf("make WireGuard key: %w", err)
	}
	defer unlock()
	path := filepath.Join(dir, File)
	keys, err := read(path)
	if errors.Is(err, fs.ErrNotExist) {
		return create(path)
	}
	return keys, err
}

func create(path string) (*mesh.Keys, error) {
	k, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err == nil {
		text := base64.StdEncoding.EncodeToString(k.Bytes()) + "\n"
		err = durable.WriteDurable(path, []byte(text), 0o600)
	}
	if err != nil {
		return nil, fmt.Errorf("make WireGuard key: %w", err)
	}
	return keysOf(k), nil
}

func keysOf(k *ecdh.PrivateKey) *mesh.Keys {
	return &mesh.Keys{Public: mesh.Key(k.PublicKey().Bytes()), Private: mesh.Secret(k.Bytes())}
}

// read reads the key file. It returns an error if other users can read the file, because they
// may have the key.
func read(path string) (*mesh.Keys, error) {
	at, err := os.Lstat(path)
	if err != nil {
		return nil, fmt.Errorf("read WireGuard key: %w", err)
	}
	if at.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("read WireGuard key: others may have read %s (mode %#o): remove it, and start again for a new key", path, at.Mode().Perm())
	}
	data, err := durable.Read(path)
	if err != nil {
		return nil, fmt.Errorf("read WireGuard key: %w", err)
	}
	b, err := base64.StdEncoding.Strict().DecodeString(strings.TrimSpace(string(data)))
	if err == nil {
		var k *ecdh.PrivateKey
		if k, err = ecdh.X25519().NewPrivateKey(b); err == nil {
			return keysOf(k), nil
		}
	}
	return nil, fmt.Errorf("read WireGuard key: %s has none: remove it, and start again for a new key", path)
}
