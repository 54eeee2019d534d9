"""Spotify in the built-in world: artists, albums, songs, and each person's likes and playlists."""

from random import Random
from typing import Any

from appworld.common.datetime import DateTime

from .people import NOW, PEOPLE, account

ARTISTS = {
    "Low Tide": "jazz",
    "Iron Kite": "rock",
    "Paper Harbour": "pop",
    "The Slow Clocks": "jazz",
    "Glass Orchard": "folk",
    "Red Lantern": "rock",
    "Mira Sol": "pop",
    "Old Bridge": "folk",
}
COLOURS = ("Amber", "Silver", "Crimson", "Velvet", "Hollow", "Golden")
THINGS = ("River", "Window", "Engine", "Garden", "Letter", "Summit", "Harbour", "Candle")
PLAYLISTS = ("Morning Coffee", "Long Drive", "Gym Hour", "Rainy Sunday")


def add_music(models: Any) -> None:
    """Create data for Spotify: 8 artists, 8 albums, 48 songs, libraries, likes and playlists."""
    rng = Random("mini world: music")  # noqa: S311 - content, nothing secret
    songs = _add_songs(models, rng)
    spotify = models.spotify
    albums = [album.id for album in spotify.Album.all()]
    artists = range(1, len(ARTISTS) + 1)
    for person in PEOPLE:
        user_id = account(models, "spotify", person.first).id
        ours = rng.sample(songs, 28)
        entries = (
            (spotify.UserLibrarySong, "song_id", "created_at", 200, ours[:24]),
            (spotify.SongLike, "song_id", "liked_at", 100, [*ours[:6], *ours[24:]]),
            (spotify.UserLibraryAlbum, "album_id", "created_at", 60, rng.sample(albums, 2)),
            (spotify.UserArtistFollowing, "artist_id", "created_at", 90, rng.sample(artists, 3)),
        )
        for table, field, when, days, ids in entries:
            for number, id_ in enumerate(ids):
                table.create_save(user_id=user_id, **{field: id_, when: _days_ago(days - number)})
        sizes = rng.sample(range(4, 14), len(PLAYLISTS))
        for number, title in enumerate(PLAYLISTS):
            playlist = spotify.Playlist.create_save(
                user_id=user_id, title=title, created_at=_days_ago(150 - number)
            )
            for place, song in enumerate(rng.sample(songs, sizes[number])):
                spotify.PlaylistSong.create_save(
                    playlist_id=playlist.id, song_id=song, added_at=_days_ago(140 - place)
                )


def _add_songs(models: Any, rng: Random) -> list[int]:
    titles = [f"{colour} {thing}" for thing in THINGS for colour in COLOURS]
    plays = rng.sample(range(100, 9900), len(titles))
    songs: list[int] = []
    for number, (name, genre) in enumerate(ARTISTS.items()):
        artist = models.spotify.Artist.create_save(name=name, genre=genre, created_at=NOW)
        released = DateTime(2014 + number, 3, 1)
        album = models.spotify.Album.create_save(
            title=f"{THINGS[number]} Songs",
            artist_ids=[artist.id],
            genre=genre,
            release_date=released,
        )
        for place in range(len(COLOURS)):
            song = models.spotify.Song.create_save(
                title=titles[len(songs)],
                # The last two songs of each artist came out later, as singles.
                album_id=album.id if place < 4 else None,
                artist_ids=[artist.id],
                duration=rng.randrange(150, 330),
                genre=genre,
                release_date=released if place < 4 else released.add(years=1, days=place),
                play_count=plays[len(songs)],
            )
            songs.append(song.id)
    return songs


def _days_ago(days: int) -> Any:
    return NOW.subtract(days=days)
