// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import "encoding/json"

// Conf is the part of a plugin's configuration that the protocol defines. The keys match in
// any case, as in encoding/json; unknown keys are ignored.
type Conf struct {
	CNIVersion string `json:"cniVersion"`
	Name       string `json:"name"`
	Type       string `json:"type"`

	// PrevResult is the raw result of the plugin before (ADD) or of the whole
	// chain (CHECK, DEL).
	PrevResult json.RawMessage `json:"prevResult"`

	IPAM struct {
		Type string `json:"type"`
	} `json:"ipam"`

	// ValidAttachments is the list of attachments that a GC keeps. The tag 1.1.0 called the
	// key cni.dev/attachments, main renamed it; both are written and read.
	ValidAttachments attachments `json:"cni.dev/valid-attachments"`
	OldAttachments   attachments `json:"cni.dev/attachments"`
}

// attachments is a list that may be absent. null is an empty list: libcni writes it for a
// runtime that has no container left.
type attachments struct {
	list  []Attachment
	named bool
}

// UnmarshalJSON is called for null too.
func (a *attachments) UnmarshalJSON(data []byte) error {
	a.named = true
	return json.Unmarshal(data, &a.list)
}

// ParseConf decodes the head of a plugin configuration.
func ParseConf(data []byte) (*Conf, error) {
	c := new(Conf)
	if err := json.Unmarshal(data, c); err != nil {
		return nil, Errorf(CodeDecoding, "failed to load netconf: %w", err)
	}
	if c.CNIVersion == "" {
		c.CNIVersion = Legacy
	}
	return c, nil
}

// Valid returns the attachments that a GC must keep. ok is false when the request has no
// list, which does not allow removing everything.
func (c *Conf) Valid() (valid []Attachment, ok bool) {
	if c.ValidAttachments.named {
		return c.ValidAttachments.list, true
	}
	return c.OldAttachments.list, c.OldAttachments.named
}

// WithPrevResult returns a plugin configuration with prevResult set to prev in the
// configuration's version; nil leaves the configuration unchanged.
func WithPrevResult(config []byte, prev *Result) ([]byte, error) {
	if prev == nil {
		return config, nil
	}
	head, err := ParseConf(config)
	if err != nil {
		return nil, err
	}
	var conf map[string]json.RawMessage
	if err := json.Unmarshal(config, &conf); err != nil {
		return nil, Errorf(CodeDecoding, "failed to load netconf: %w", err)
	}
	if conf["prevResult"], err = prev.Encode(head.CNIVersion); err != nil {
		return nil, err
	}
	return json.Marshal(conf)
}
