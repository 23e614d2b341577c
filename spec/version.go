// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Current is the newest version of the specification that this library supports.
const Current = "1.1.0"

// Legacy is the version of a configuration without cniVersion, as in libcni and skel. (The
// specification's text says 0.2.0, but no program implemented that.)
const Legacy = "0.1.0"

// Versions lists every supported version, oldest first. Versions is a function, because a package
// variable would be filled before main, in every process.
func Versions() []string {
	return []string{"0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}
}

// VersionsFrom lists the supported versions starting at min, oldest first.
func VersionsFrom(min string) []string {
	all := Versions()
	for i, v := range all {
		if AtLeast(v, min) {
			return all[i:]
		}
	}
	return nil
}

// Supported reports whether this library can write a result of version v.
func Supported(v string) bool {
	for _, s := range Versions() {
		if s == v {
			return true
		}
	}
	return false
}

// Compare compares two versions. Compare returns a negative number if a is older than b. An
// empty version counts as Legacy, an invalid one as 0.0.0.
func Compare(a, b string) int {
	x, _ := parseVersion(a)
	y, _ := parseVersion(b)
	for i := range x {
		if d := x[i] - y[i]; d != 0 {
			return d
		}
	}
	return 0
}

// AtLeast reports whether v is equal to min or newer.
func AtLeast(v, min string) bool { return Compare(v, min) >= 0 }

// ValidateVersion returns an error unless v has the form MAJOR[.MINOR[.PATCH]].
// ValidateVersion accepts an empty version, which means Legacy.
func ValidateVersion(v string) error {
	_, err := parseVersion(v)
	return err
}

func parseVersion(v string) (out [3]int, err error) {
	if v == "" {
		v = Legacy
	}
	parts := strings.Split(v, ".")
	if len(parts) > len(out) {
		return out, fmt.Errorf("invalid version %q: too many parts", v)
	}
	for i, p := range parts {
		n, err := strconv.ParseUint(p, 10, 16)
		if err != nil {
			return [3]int{}, fmt.Errorf("invalid version %q: part %q is not a number", v, p)
		}
		out[i] = int(n)
	}
	return out, nil
}

// VersionInfo is the output of VERSION.
type VersionInfo struct {
	CNIVersion        string   `json:"cniVersion"`        // version of the request
	SupportedVersions []string `json:"supportedVersions"` // versions that the plugin supports
}

// ParseVersions reads the output of VERSION. If a plugin answers with version 0.2.0 and no list,
// it supports 0.1.0 and 0.2.0, as in libcni.
func ParseVersions(data []byte) (*VersionInfo, error) {
	v := new(VersionInfo)
	if err := json.Unmarshal(data, v); err != nil {
		return nil, Errorf(CodeDecoding, "decoding version info: %w", err)
	}
	switch {
	case v.CNIVersion == "":
		return nil, Errorf(CodeDecoding, "decoding version info: %w", errors.New("missing field cniVersion"))
	case len(v.SupportedVersions) == 0 && v.CNIVersion == "0.2.0":
		v.SupportedVersions = []string{"0.1.0", "0.2.0"}
	case len(v.SupportedVersions) == 0:
		return nil, Errorf(CodeDecoding, "decoding version info: %w", errors.New("missing field supportedVersions"))
	}
	return v, nil
}
