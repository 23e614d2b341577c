// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package sealed is the frame of files that the agent of a node writes and an ADD believes: a first line with the kind of the
// file, the schema of its format and the SHA-256 of what follows. Without the checksum, a file that lost a line would say
// something else than was written.
package sealed

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// These are the errors of Open.
var (
	ErrDamaged = errors.New("the file is damaged")
	ErrSchema  = errors.New("schema")
)

// Seal returns the text of a file. kind is a word without blanks.
func Seal(kind string, schema int, body []byte) []byte {
	return append(firstLine(kind, schema, body), body...)
}

func firstLine(kind string, schema int, body []byte) []byte {
	return fmt.Appendf(nil, "%s %d %x\n", kind, schema, sha256.Sum256(body))
}

// Open returns what follows the first line. The error wraps ErrSchema if the file has another schema, and ErrDamaged if it was
// not written like this.
func Open(kind string, schema int, data []byte) (body []byte, err error) {
	line, body, _ := bytes.Cut(data, []byte("\n"))
	words := strings.Split(string(line), " ")
	if len(words) != 3 || words[0] != kind {
		return nil, ErrDamaged
	}
	if n, err := strconv.Atoi(words[1]); err != nil || n != schema {
		return nil, fmt.Errorf("%w %.20q; this program reads %d", ErrSchema, words[1], schema)
	}
	if string(line)+"\n" != string(firstLine(kind, schema, body)) {
		return nil, ErrDamaged
	}
	return body, nil
}
