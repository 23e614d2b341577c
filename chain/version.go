// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"encoding/json"
	"fmt"

	"github.com/patchbay-net/patchbay/spec"
)

// parseVersion negotiates: it chooses the highest version that the configuration lists
// (cniVersion and cniVersions) and this library supports (SPEC.md 1.1.0). If there is none,
// it keeps cniVersion, and the plugins refuse it.
func (l *List) parseVersion(raw map[string]json.RawMessage) error {
	if data, ok := raw["cniVersion"]; ok {
		if json.Unmarshal(data, &l.CNIVersion) != nil || string(data) == "null" {
			return listError("invalid cniVersion type %s", jsonType(data))
		}
	}
	data, ok := raw["cniVersions"]
	if !ok {
		return nil
	}
	offered, err := parseVersions(data)
	if err != nil {
		return err
	}
	if l.CNIVersion != "" {
		if err := spec.ValidateVersion(l.CNIVersion); err != nil {
			return listError("invalid cniVersion %s: %w", l.CNIVersion, err)
		}
		offered = append(offered, l.CNIVersion)
	}
	if best := highest(offered); best != "" {
		l.CNIVersion = best
	}
	return nil
}

func parseVersions(data json.RawMessage) ([]string, error) {
	var entries []json.RawMessage
	if json.Unmarshal(data, &entries) != nil || string(data) == "null" {
		return nil, listError("invalid type for cniVersions: %s", jsonType(data))
	}
	versions := make([]string, len(entries))
	for i, entry := range entries {
		if json.Unmarshal(entry, &versions[i]) != nil || string(entry) == "null" {
			return nil, listError("invalid type for cniVersions index %d: %s", i, jsonType(entry))
		}
		if err := spec.ValidateVersion(versions[i]); err != nil {
			return nil, fmt.Errorf("%w", listError("invalid cniVersions entry %s at index %d: %w", versions[i], i, err))
		}
	}
	return versions, nil
}

// highest returns the newest version that is not newer than ours.
func highest(offered []string) (best string) {
	for _, v := range offered {
		if spec.Compare(v, spec.Current) <= 0 && (best == "" || spec.Compare(v, best) > 0) {
			best = v
		}
	}
	return best
}
