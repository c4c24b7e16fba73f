package screen

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"
)

// HideCredentials keeps the credentials of connection strings out of messages: drivers quote the strings.
func HideCredentials(err error, uris ...string) error {
	for _, uri := range uris {
		_, rest, _ := strings.Cut(uri, "://")
		credentials, _, ok := strings.Cut(rest, "@")
		if !ok || credentials == "" || !strings.Contains(err.Error(), credentials) && !strings.Contains(err.Error(), password(credentials)) {
			continue
		}
		text := strings.ReplaceAll(err.Error(), credentials, "***")
		err = errors.New(strings.ReplaceAll(text, password(credentials), "***"))
	}
	return err
}

func password(credentials string) string {
	_, secret, ok := strings.Cut(credentials, ":")
	if !ok || secret == "" {
		return credentials
	}
	if plain, err := url.PathUnescape(secret); err == nil {
		return plain
	}
	return secret
}

// Clip cuts a text off after so many bytes.
func Clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// Plural is the noun as it stands behind n.
func Plural(n int, noun string) string {
	if n == 1 {
		return noun
	}
	return noun + "s"
}

// Seconds is a time as people read it.
func Seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }
