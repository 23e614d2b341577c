// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import "encoding/json"

// Conf is the part of a plugin's configuration that the protocol defines. The case of keys
// does not matter, as in encoding/json. Unknown keys are ignored.
type Conf struct {
	CNIVersion string `json:"cniVersion"`
	Name       string `json:"name"`
	Type       string `json:"type"`

	// PrevResult is the raw previous result. An ADD gets the result of the plugin that ran before
	// it. CHECK and DEL get the result of the whole chain.
	PrevResult json.RawMessage `json:"prevResult"`

	IPAM struct {
		Type string `json:"type"`
	} `json:"ipam"`

	// ValidAttachments lists the attachments that a GC must keep. Version 1.1.0 of the specification
	// calls the key cni.dev/attachments; the specification's main branch calls it
	// cni.dev/valid-attachments. We write and read both keys.
	ValidAttachments validAttachments `json:"cni.dev/valid-attachments"`
	OldAttachments   validAttachments `json:"cni.dev/attachments"`
}

// validAttachments is a list that may be absent. A JSON null counts as an empty list, because
// libcni writes null for a runtime that has no container left.
type validAttachments struct {
	list  []AttachmentKey
	named bool
}

// UnmarshalJSON reads a list. encoding/json calls it for a null too.
func (a *validAttachments) UnmarshalJSON(data []byte) error {
	a.named = true
	return json.Unmarshal(data, &a.list)
}

// ParseConf decodes the protocol's part of a plugin configuration.
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

// Valid returns the attachments that a GC must keep. If the request has no list, ok is false, and
// the GC must not remove anything on the ground that it is not listed.
func (c *Conf) Valid() (valid []AttachmentKey, ok bool) {
	if c.ValidAttachments.named {
		return c.ValidAttachments.list, true
	}
	return c.OldAttachments.list, c.OldAttachments.named
}

// WithPrevResult returns config with prev as its prevResult, converted to the configuration's
// version. If prev is nil, it returns config unchanged.
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
