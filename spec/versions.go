// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"encoding/json"
	"errors"
)

// VersionInfo is the output of VERSION.
type VersionInfo struct {
	CNIVersion        string   `json:"cniVersion"`        // the caller's
	SupportedVersions []string `json:"supportedVersions"` // those that the plugin supports
}

// ParseVersions reads the output of VERSION. As in libcni, a plugin of 0.2.0 without a list
// supports 0.1.0 and 0.2.0.
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
