// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"fmt"
	"strings"
)

// IfNameMax is the length of the longest interface name that Linux accepts: IFNAMSIZ without
// the terminating NUL.
const IfNameMax = 15

// ValidateContainerID checks an id by the rule of the specification. The id starts with a letter
// or digit. Letters, digits, '_', '.' and '-' may follow.
func ValidateContainerID(id string) error {
	if id == "" {
		return Errorf(CodeUnknownContainer, "missing containerID")
	}
	if !validName(id) {
		return Errorf(CodeInvalidEnvironment, "invalid characters in containerID").
			WithDetails("%.80q: must start alphanumeric and hold only alphanumerics, '_', '.' and '-'", id)
	}
	return tooLong(CodeInvalidEnvironment, "containerID", id)
}

// ValidateNetworkName checks the name of a network by the rule for container ids.
func ValidateNetworkName(name string) error {
	if name == "" {
		return Errorf(CodeInvalidConfig, "missing network name")
	}
	if !validName(name) {
		return Errorf(CodeInvalidConfig, "invalid characters found in network name").
			WithDetails("%.80q: must start alphanumeric and hold only alphanumerics, '_', '.' and '-'", name)
	}
	return tooLong(CodeInvalidConfig, "network name", name)
}

// tooLong refuses a name that is too long for a file name. The names of state files contain
// network, container and interface, and NAME_MAX is 255.
func tooLong(code Code, what, s string) error {
	if len(s) > 200 {
		return Errorf(code, "%s is too long", what).WithDetails("%d bytes, at most 200", len(s))
	}
	return nil
}

// ValidateIfName refuses the names that the kernel's dev_valid_name refuses, and names with
// ':'.
func ValidateIfName(name string) error {
	switch {
	case name == "":
		return Errorf(CodeInvalidEnvironment, "interface name is empty")
	case len(name) > IfNameMax:
		return Errorf(CodeInvalidEnvironment, "interface name is too long").
			WithDetails("interface name should be less than %d characters", IfNameMax+1)
	case name == "." || name == "..":
		return Errorf(CodeInvalidEnvironment, "interface name is . or ..")
	}
	for _, r := range name {
		if r == '/' || r == ':' || r == 0 || isSpace(r) {
			return Errorf(CodeInvalidEnvironment, "interface name contains / or : or whitespace characters").
				WithDetails("%q", name)
		}
	}
	return nil
}

// ValidateNewIfName also refuses the names that the kernel gives to no interface: "all" and "default",
// which are directories of sysctls, and a name with %, which the kernel replaces by another one.
func ValidateNewIfName(name string) error {
	if err := ValidateIfName(name); err != nil {
		return err
	}
	if name == "all" || name == "default" {
		return Errorf(CodeInvalidEnvironment, "the kernel has sysctls under the name %s, so no interface can have it", name)
	}
	if strings.Contains(name, "%") {
		return Errorf(CodeInvalidEnvironment, "the kernel would choose another name for the interface %s: leave out the %%", name)
	}
	return nil
}

// ValidatePluginType refuses a type that names a file outside CNI_PATH, for example one with a
// slash.
func ValidatePluginType(t string) error {
	switch {
	case t == "":
		return Errorf(CodeInvalidConfig, "error parsing configuration: missing 'type'")
	case strings.ContainsAny(t, "/\\\x00") || t == "." || t == "..":
		return Errorf(CodeInvalidConfig, "invalid plugin name: %s", fmt.Sprintf("%.80q", t))
	}
	return nil
}

func isSpace(r rune) bool {
	return r == ' ' || (r >= '\t' && r <= '\r') || r == 0x85 || r == 0xa0
}

func validName(s string) bool {
	for i := range len(s) {
		c := s[i]
		alnum := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !alnum && (i == 0 || c != '_' && c != '.' && c != '-') {
			return false
		}
	}
	return s != ""
}
