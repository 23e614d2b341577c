// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package owner derives the owner key of an attachment, a hash of fixed length of (network,
// container id, interface). Every object of the attachment carries this key. By the key, DEL and
// GC find links, sets and files without any stored state. The table in docs/ownership.md says
// where each kind of object carries it.
package owner

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/hex"
	"strings"
)

// Len is the length of a Key. 15 characters hold 75 bits. With a final NUL they fit into 16
// bytes, the length of an interface name as a key in nftables.
const Len = 15

// aliasPrefix comes before the owner key in the ifalias of our links.
const aliasPrefix = "patchbay:"

// Key is the owner key of an object: 15 characters from a-z and 2-7.
type Key string

// Of returns the owner key of an attachment.
func Of(network, containerID, ifName string) Key {
	sum := sha256.Sum256([]byte(network + "\x00" + containerID + "\x00" + ifName))
	enc := base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)
	return Key(enc.EncodeToString(sum[:10])[:Len])
}

// LinkName derives an interface name from the key. The name is prefix and hex digits of a hash,
// cut to 15 bytes. If another owner has the name already, the caller takes the next number, which
// gives another name.
func (k Key) LinkName(prefix string, number byte) string {
	sum := sha256.Sum256(append([]byte(prefix+string(k)), number))
	digits := min(8, 15-len(prefix))
	return prefix + hex.EncodeToString(sum[:])[:digits]
}

// Alias returns the ifalias of a link that belongs to k.
func (k Key) Alias() string { return aliasPrefix + string(k) }

// FromAlias returns the key in an ifalias. If Alias did not make the ifalias, ok is false.
func FromAlias(alias string) (k Key, ok bool) {
	s, ok := strings.CutPrefix(alias, aliasPrefix)
	if !ok || !Key(s).Valid() {
		return "", false
	}
	return Key(s), true
}

// Valid reports whether k has the form of a key. A valid key is safe as a file name.
func (k Key) Valid() bool {
	for i := range len(k) {
		if c := k[i]; (c < 'a' || c > 'z') && (c < '2' || c > '7') {
			return false
		}
	}
	return len(k) == Len
}
